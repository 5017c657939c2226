"""In a real terminal of 80 columns no table is cut, and each of its words is there."""

import shutil
from io import StringIO

import pytest
from rich.console import Console

from tests.support.synthetic_study import METRIC, write_study
from tests.support.terminal import in_terminal
from trl_ablate.bench import timing
from trl_ablate.cli import terminal
from trl_ablate.cli.study import main
from trl_ablate.run.directory import INTERRUPTED, RunDirectory
from trl_ablate.run.json_files import append_jsonl
from trl_ablate.study.outline import grid
from trl_ablate.study.runs import StudyRuns


def shown_bench() -> None:
    parts = {f"s {part}": 1.23456 for part in ("rollout", "reward", "train", "other", "eval")}
    rows = [{"trainer": name, **parts, "peak": 12345678} for name in ("stock TRL", "trl_ablate")]
    timing.publish("whole steps, 128 rollouts", rows, {}, timing.Path("/dev/null"))


def shown_long_value() -> None:
    terminal.console.print(terminal.table("done", [("run", "layer", "runs/" + "a" * 90)]))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (shown_bench, ["s rollout", "1.235", "peak", "12345678"]),
        (shown_long_value, ["runs/", "a" * 40]),
    ],
)
def test_a_table_is_not_cut(act, words):
    printed = in_terminal(act)
    assert max(map(len, printed)) <= 80 and "…" not in "".join(printed), printed
    assert all(any(word in line for line in printed) for word in words), printed


LONG_NAME = "baseline_none--scale_rewards_none--mean--learning_rate_7.5e-06"


@pytest.mark.parametrize(("seeds", "name"), [(3, "b"), (12, LONG_NAME)])
def test_the_grid_has_every_state_and_the_last_values_or_their_mean(tmp_path, seeds, name):
    planned, store = write_study(tmp_path, {"grpo": {"top": 0.8}, name: {"top": 0.4}}, range(seeds))
    *others, last = (RunDirectory(store.path / run.id) for run in planned.arms[1].runs)
    for run in others:
        run.update(status="stopped", reason=INTERRUPTED[0])
    shutil.rmtree(last.path)
    printed = in_terminal(lambda: terminal.console.print(grid(StudyRuns(planned, store))))
    assert max(map(len, printed)) <= 80, printed
    header, first, *_ = (line.split() for line in printed[1:])
    text = "".join(printed[:-2])
    assert [text.count(mark) for mark in "✓…·"] == [seeds, seeds - 1, 1]
    assert name[:50] in text and name[-7:] in text
    if seeds == 3:
        assert header == ["arm", "seed", "0", "seed", "1", "seed", "2"] and first[1::2] == ["✓"] * 3
        assert all(0.6 < float(value) < 1 for value in first[2::2])
    else:
        assert header == ["arm", "seeds", "0", "..", "11", "mean"] and first[1] == "✓" * 12
        assert 0.7 < float(first[2]) < 0.9


def test_the_grid_reads_a_file_again_only_when_it_has_changed(tmp_path, monkeypatch):
    """It is drawn twice a second, of studies with hundreds of runs."""
    planned, store = write_study(tmp_path, {"grpo": {"top": 0.8}}, range(2))
    first, _ = (store.directory(run_id) for run_id in planned.runs())
    read, metrics = [], RunDirectory.metrics
    monkeypatch.setattr(RunDirectory, "metrics", lambda run: read.append(run) or metrics(run))

    def drawn() -> str:
        read.clear()
        Console(file=(printed := StringIO()), width=80).print(grid(StudyRuns(planned, store)))
        return printed.getvalue()

    before = drawn()
    assert drawn() == before and not read
    append_jsonl(first.metrics_file, {"step": 21, "grpo_step": 21.0, METRIC: 0.125})
    assert "0.125" in drawn() and read == [first]


def test_a_plan_shows_what_differs_in_whole_words(tmp_path):
    printed = in_terminal(lambda: main(["plan", "papers", "--runs", str(tmp_path)]))
    text = "\n".join(printed)
    assert max(map(len, printed)) <= 80 and "…" not in text.replace("… interrupted", "")
    assert "--probe" in text and "unknown" not in text
    assert "\nlite_ppo: length_norm token, loss_type dapo, scale_rewards batch\n" in text
    assert "\ndr_grpo: length_norm constant, loss_type dr_grpo, scale_rewards none\n" in text
