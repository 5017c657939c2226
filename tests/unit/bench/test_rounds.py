"""Every mode of the bench alternates, and reports medians and spreads; the positions that are
counted are those of the formulas."""

import json
import os
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from trl_ablate.bench import reward_time, step_time, synthetic, timing, train_time
from trl_ablate.bench.gpu.parts import first_gpus
from trl_ablate.bench.modes import OfLengths, Rollout, Scale, Step, Train
from trl_ablate.bench.reward_time import golds_of
from trl_ablate.bench.rollout_time import lengths_in_groups
from trl_ablate.bench.synthetic import lengths, recorded_lengths
from trl_ablate.bench.timing import Measured, alternate, compared, fewest, ratio, trainer_of
from trl_ablate.cli.bench import PRESETS, asked, main
from trl_ablate.errors import ConfigurationError


def test_a_comparison_has_medians_spreads_and_ratios_of_pairs():
    """So that a passing load does not show: another program ran during the third pair."""
    ours, theirs = [1.0, 1.1, 4.0, 1.0], [2.0, 2.2, 8.0, 2.0]
    assert ratio(theirs, ours) == 2
    row = compared("ours", "s", Measured(ours, [3.0] * 4), Measured(theirs, [9.0] * 4))
    assert row == {
        "what": "ours", "s": 1.05, "spread": 3.0, "ratio": 2, "CPU s": 3.0, "CPU ratio": 3.0,
    }  # fmt: skip


def test_ways_alternate_and_neither_a_warm_up_nor_a_first_step_is_timed():
    calls = []
    ways = {name: lambda number, name=name: calls.append((name, number)) or number for name in "ab"}
    found = alternate(ways, rounds=2, warmup=1)
    assert calls == [(name, number) for number in range(3) for name in "ab"]
    for one in found.values():
        assert len(one.seconds) == len(one.cpu) == 2 and one.returned == [0, 1, 2]
    timer = timing.StepTimer(into := Measured())
    for step in (1, 2, 3):
        timer.on_step_begin(None, None, None)
        timer.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert len(into.seconds) == len(into.cpu) == 2


def test_trainers_alternate_each_built_anew_in_every_round(monkeypatch):
    built = []
    builds = {name: lambda name=name: built.append(name) or len(built) for name in "ab"}
    monkeypatch.setattr(timing, "measure", lambda trainer, into: into.seconds.append(trainer))
    found = timing.compare(builds, rounds=3)
    assert built == ["a", "b"] * 3
    assert [one.seconds for one in found.values()] == [[1, 3, 5], [2, 4, 6]]


def test_every_round_of_scale_measures_all_points(monkeypatch):
    asked = []

    def measured(rows, mean_length, processes, steps):
        asked.append((rows, mean_length, processes))
        return {"s/step": float(len(asked)), "tokens/s": 1e6, "peak GiB": 10.0 * len(asked)}

    monkeypatch.setattr(train_time, "_alone", measured)
    asked_for = Scale(rows=[8, 16], mean_lengths=[32.0], processes=[1], steps=1, rounds=3)
    _, (first, second), _ = train_time.bench_scale(asked_for)
    assert asked == 3 * [(8, 32.0, 1), (16, 32.0, 1)]
    assert first == {
        "what": "8 rollouts of 32 tokens, 1 process(es)",
        "s/step": 3.0, "spread": 4.0, "µs/token": 1.0, "peak GiB": 50.0,
    }  # fmt: skip
    assert second["s/step"] == 4.0


def test_the_processes_of_a_point_share_the_cores_that_this_one_may_use(monkeypatch):
    def started(words, env, **how):
        Path(words[-1]).write_text(json.dumps({"rows": [env["OMP_NUM_THREADS"]]}))

    monkeypatch.setattr(train_time.subprocess, "run", started)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5, 7}, raising=False)
    assert [train_time._alone(8, 16.0, count, 1) for count in (1, 2, 8)] == ["4", "2", "1"]


def test_a_process_is_measured_on_one_gpu_of_as_many_as_there_are(monkeypatch):
    monkeypatch.setattr(train_time.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train_time.torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigurationError, match="--processes 3 needs as many GPUs, and 2 are vis"):
        train_time.bench_scale(Scale(rows=[24], processes=[1, 3]))
    for visible, count, seen in ((None, 1, "0"), (None, 2, "0,1"), ("3,5,6", 2, "3,5")):
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert first_gpus(count, environment) == {"CUDA_VISIBLE_DEVICES": seen}
    monkeypatch.setattr("trl_ablate.config.AblationConfig.n_gpu", 2)
    monkeypatch.setattr(timing.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="on one GPU, and 2 are visible; set CUDA_VISIBLE"):
        trainer_of(False, {})


@pytest.mark.parametrize("count", [4, 10, 16])
def test_a_batch_has_as_many_answers_as_asked_for(count):
    answers, golds = reward_time.rollout_batch("ab", count, Random(0))
    assert len(answers) == len(golds) == count
    assert answers[1::2] == [f" {gold} " for gold in golds[1::2]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "is empty"), ("[3]\n", "line 1: a JSON list"), ("5\n", "line 1: a JSON int"),
     ('{"answer": 3, "length": "3"}\n', "line 1: its `{}` is"),
     ('{"x": 1}\n{"an', "line 1: its `{}` is None"), ('{"', "line 1: not JSON")],
)  # fmt: skip
def test_recorded_values_of_another_shape_are_refused(tmp_path, text, sentence):
    file = tmp_path / "recorded.jsonl"
    file.write_text(text)
    for read, name in ((lambda file: golds_of(file, Random(0)), "answer"),
                       (recorded_lengths, "length")):  # fmt: skip
        if (text, name) == ("[3]\n", "length"):
            assert read(file) == [3]
            continue
        with pytest.raises(ConfigurationError, match=sentence.format(name)):
            read(file)


def test_recorded_values_are_read(tmp_path):
    file = tmp_path / "recorded.jsonl"
    file.write_text('{"answer": "1", "length": 4}\n{"answer": "x", "length": 2}\n')
    assert golds_of(file, Random(0)) == ["1", "x"]
    assert recorded_lengths(file) == [4, 2]


@pytest.mark.parametrize("name", PRESETS)
def test_lengths_have_the_mean_that_is_asked_for(name):
    names = ("rows", "mean_length", "cap", "sigma")
    sizes = {key: value for key, value in PRESETS[name].items() if key in names}
    found = lengths(OfLengths(**sizes))
    assert sum(found) / len(found) == pytest.approx(sizes["mean_length"], abs=0.5)
    assert max(found) <= sizes["cap"]
    found = lengths_in_groups(Rollout(**sizes, group=8))
    assert sum(found) / len(found) == pytest.approx(sizes["mean_length"], abs=0.5)
    assert len(found) == sizes["rows"] and found[:8] == [found[0]] * 8


def test_no_mean_is_above_the_cap():
    assert lengths(OfLengths(rows=3, mean_length=8, cap=8)) == [8, 8, 8]
    for uniform in (False, True):
        with pytest.raises(ConfigurationError, match="--mean_length 8.5 is above --cap 8; change"):
            lengths(OfLengths(mean_length=8.5, cap=8, uniform=uniform))
    for wrong, said in (({"mean_length": 0.2}, "1 to inf"), ({"sigma": -1.0}, "0 to 10")):
        with pytest.raises(ConfigurationError, match=f"; give {said}"):
            lengths(OfLengths(**wrong))


def test_the_random_model_of_a_step_is_removed(monkeypatch):
    """One of 1.5 B parameters takes 6 GiB of the disk."""
    monkeypatch.setitem(synthetic.SHAPES, "qwen2.5-math-1.5b", synthetic.SHAPES["miniature"])
    seen = []

    def compare(model, load):
        seen.extend(Path(model).glob("*.safetensors"))
        return dict.fromkeys((timing.STOCK, timing.OURS), Measured([1.0], [1.0]))

    monkeypatch.setattr(step_time, "compare", compare)
    step_time.bench(Step(model_shape="qwen2.5-math-1.5b"))
    assert len(seen) == 1 and not seen[0].parent.exists()


def test_a_prompt_counts_once_and_a_backward_pass_twice_more():
    assert fewest([10], [5, 3], [False, False]) == 10 + 4 + 2
    assert fewest([10], [5, 3], [True, False]) == 3 * 10 + 3 * 4 + 2
    assert fewest([10, 20], [5, 3], [True, False]) == 3 * 10 + 3 * 4 + 20 + 2
    learns = [False, False, True, False]
    assert fewest([10, 20], [5, 3, 4, 2], learns) == 10 + 4 + 2 + 3 * 20 + 3 * 3 + 1


def test_rewards_without_a_gradient_and_recorded_lengths_of_an_odd_number(tmp_path):
    (tmp_path / "lengths.json").write_text(str([5] * 13))
    asked = Train(rows=24, group=4, rounds=1, steps=1, idle=1.0, prompt_length=4)
    asked.lengths = tmp_path / "lengths.json"
    title, rows, facts = train_time.bench(asked) or ("", [], {})
    assert title.startswith("training phase, 12 completions of 5 tokens")
    assert facts["gradient norms, relative"] == 0 and len(rows) == 2


SMALL = ["--rows", "8", "--group", "4", "--prompt_length", "10", "--cap", "12", "--rounds", "1"]


def measured(tmp_path, *words: str) -> tuple[dict[str, dict], dict]:
    output = tmp_path / "bench.json"
    assert main([*words, *SMALL, "--mean_length", "6", "--output", str(output)]) == 0
    found = json.loads(output.read_text("utf-8"))
    return {row["what"]: row for row in found["rows"]}, found["facts"]


def test_positions_of_training(tmp_path):
    """Stock TRL computes every row at full width, forward and backward."""
    words = ("--idle", "0.5", "--microbatch", "4", "--steps", "1", "--sigma", "0.1")
    rows, facts = measured(tmp_path, "train", *words)
    longest, tokens = (round(rows["stock TRL"]["positions"] / (3 * 8)) - 10), 6 * 8
    assert rows["stock TRL"]["positions"] == 3 * 8 * (10 + longest) and 6 <= longest <= 12
    ours = rows["trl_ablate"]["positions"]
    assert 2 * (10 + 4 * 5) * 2 <= ours < rows["stock TRL"]["positions"] * 0.75
    limit = facts["positions of stock TRL, in multiples of the fewest"]
    assert limit == pytest.approx(
        rows["stock TRL"]["positions"] / (4 * 10 + 2 * (tokens - 8)), rel=0.1
    )


def test_positions_of_rollouts(tmp_path):
    """transformers reads every prompt of a row, and goes on until the last row has ended. Ours
    reads a prompt once, and what both of them begin with."""
    rows, facts = measured(tmp_path, "rollout", "--uniform")
    assert rows["transformers"]["positions"] == 8 * (10 + 5)
    own_check = 8  # the first token, by the model and by the short pass
    begun = 2
    assert rows["trl_ablate"]["positions"] == begun + 2 * (10 - begun) + 8 * 5 + own_check
    limit = facts["positions of transformers, in multiples of the fewest"]
    assert limit == 120 / 60
    assert facts["completions with different tokens"] == 0


@pytest.mark.parametrize("mode", ["train", "rollout", "step"])
def test_a_preset_gives_defaults(mode):
    words = ([mode], [mode, "--preset", "short_answers", "--cap", "50"])
    plain, preset = (asked(*main.parse(each)) for each in words)
    assert preset.cap == 50 and preset.rows == PRESETS["short_answers"]["rows"] != plain.rows
    assert preset.rounds == plain.rounds
