"""Every mode of the bench alternates, and reports medians and spreads."""

from random import Random

import pytest

from trl_ablate.bench import reward_time, scale_time, step_time, train_time
from trl_ablate.bench.gpu.parts import first_gpus
from trl_ablate.bench.modes import Grading, Scale, Step, Train
from trl_ablate.bench.timing import Measured, alternate, compared, ratio, trainer_of
from trl_ablate.errors import ConfigurationError


def test_a_comparison_has_medians_spreads_and_ratios_of_pairs():
    """So that a passing load does not show: another program ran during the third pair."""
    ours, theirs = [1.0, 1.1, 4.0, 1.0], [2.0, 2.2, 8.0, 2.0]
    assert ratio(theirs, ours) == 2
    row = compared("ours", "s", Measured(ours, [3.0] * 4), Measured(theirs, [9.0] * 4))
    assert row == {
        "what": "ours", "s": 1.05, "spread": 3.0, "ratio": 2, "CPU s": 3.0, "CPU ratio": 3.0,
    }  # fmt: skip


def test_ways_alternate_and_their_warm_up_is_not_timed():
    calls = []
    ways = {name: lambda number, name=name: calls.append((name, number)) or number for name in "ab"}
    found = alternate(ways, rounds=2, warmup=1)
    assert calls == [(name, number) for number in range(3) for name in "ab"]
    for one in found.values():
        assert len(one.seconds) == len(one.cpu) == 2 and one.returned == [0, 1, 2]


def test_whole_steps_alternate_from_the_same_weights(monkeypatch):
    built, load = [], Step(rounds=3)

    def measure(stock, into):
        into.seconds += [2.0, 4.0] if stock else [1.0, 1.0]
        into.cpu += [3.0, 3.0] if stock else [2.0, 2.0]
        into.logs.append({"completions/mean_length": 8.0})

    def build(stock, model, rewards, load):
        built.append((stock, model))
        return stock

    monkeypatch.setattr(step_time, "_build", build)
    monkeypatch.setattr(step_time, "measure", measure)
    monkeypatch.setattr(step_time.torch.cuda, "is_available", lambda: False)
    found = step_time.compare("folder", load)
    stock, ours = (step_time._row(name, one, found["stock TRL"]) for name, one in found.items())
    assert built == 3 * [(True, "folder"), (False, "folder")]
    assert (stock["s/step"], stock["spread"], stock["ratio"]) == (3.0, 2.0, 1.0)
    assert (ours["s/step"], ours["spread"], ours["ratio"]) == (1.0, 0.0, 3.0)
    assert (stock["CPU s"], ours["CPU s"], ours["CPU ratio"]) == (3.0, 2.0, 1.5)


def test_every_round_of_scale_measures_all_points(monkeypatch):
    asked = []

    def measured(rows, mean_length, processes, steps):
        asked.append((rows, mean_length, processes))
        return {"s/step": float(len(asked)), "tokens/s": 1e6, "peak GiB": 10.0 * len(asked)}

    monkeypatch.setattr(scale_time, "_measured", measured)
    asked_for = Scale(rows=[8, 16], mean_lengths=[32.0], processes=[1], steps=1, rounds=3)
    _, (first, second), _ = scale_time.bench(asked_for)
    assert asked == 3 * [(8, 32.0, 1), (16, 32.0, 1)]
    assert first == {
        "what": "8 rollouts of 32 tokens, 1 process(es)",
        "s/step": 3.0, "spread": 4.0, "µs/token": 1.0, "peak GiB": 50.0,
    }  # fmt: skip
    assert second["s/step"] == 4.0


def test_a_point_of_scale_has_as_many_gpus_as_processes(monkeypatch):
    with pytest.raises(ConfigurationError, match="--processes 3 needs as many GPUs, and 2 are vis"):
        monkeypatch.setattr(scale_time.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(scale_time.torch.cuda, "device_count", lambda: 2)
        scale_time.bench(Scale(rows=[24], processes=[1, 3]))
    for visible, count, seen in ((None, 1, "0"), (None, 2, "0,1"), ("3,5,6", 2, "3,5")):
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert first_gpus(count, environment) == {"CUDA_VISIBLE_DEVICES": seen}


def test_rewards_without_a_gradient_and_recorded_lengths_of_an_odd_number(tmp_path):
    (tmp_path / "lengths.json").write_text(str([5] * 13))
    asked = Train(rows=24, group=4, rounds=1, steps=1, idle=1.0, prompt_length=4)
    asked.lengths = tmp_path / "lengths.json"
    found = train_time.bench(asked)
    assert found is not None
    title, rows, facts = found
    assert title.startswith("training phase, 12 completions of 5 tokens")
    assert facts["gradient norms, relative"] == 0 and len(rows) == 2


@pytest.mark.parametrize("count", [4, 10, 16])
def test_a_batch_has_as_many_answers_as_asked_for(count):
    assert list(map(len, reward_time.rollout_batch("ab", count, Random(0)))) == [count, count]


@pytest.mark.parametrize(("gpu", "vllm", "engine"), [(1, 1, True), (1, 0, False), (0, 1, False)])
def test_vllm_generates_whole_steps_on_a_gpu_where_it_is_installed(monkeypatch, gpu, vllm, engine):
    monkeypatch.setattr(step_time.torch.cuda, "is_available", lambda: bool(gpu))
    monkeypatch.setattr(step_time, "is_vllm_available", lambda: bool(vllm))
    assert step_time.has_engine() is engine
    assert step_time.parts_computed() == (("train",) if engine else ("rollout", "train"))


def test_a_process_that_sees_several_gpus_is_not_measured(monkeypatch):
    monkeypatch.setattr("trl_ablate.config.AblationConfig.n_gpu", 2)
    with pytest.raises(ConfigurationError, match="on one GPU, and 2 are visible; set CUDA_VISIBLE"):
        trainer_of(False, {})


def test_grading_has_a_spread_without_its_warm_up():
    _, rows, facts = reward_time.bench(Grading(count=8, rounds=2, workers=1))
    assert [row["what"] for row in rows] == ["math-verify, one process", "trl_ablate, 1 workers"]
    assert all(row["spread"] >= 0 and row["s"] > 0 for row in rows)
    assert facts["verdicts that differ"] == 0 and facts["answers"] == 4 * 8
