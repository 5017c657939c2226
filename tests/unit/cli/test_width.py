"""In a real terminal of 80 columns no table is cut, and each of its words is there."""

import pytest

from tests.support.synthetic_study import write_study
from tests.support.terminal import in_terminal
from trl_ablate.bench import timing
from trl_ablate.bench.step_time import row_of
from trl_ablate.bench.timing import Measured
from trl_ablate.bench.train_time import Workload, rows_of
from trl_ablate.cli import evaluate, inspect, plan, terminal
from trl_ablate.cli.study import main
from trl_ablate.guard.logs import Log
from trl_ablate.guard.tables import Owner
from trl_ablate.metrics import EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.run.directory import INTERRUPTED, RunDirectory
from trl_ablate.study.outline import grid
from trl_ablate.study.runs import StudyRuns

LONG = "runs/" + "a" * 90
STEP = Measured([12.3456] * 3, [23.4567] * 3, [{"time/rollout": 1.23456, "time/reward": 0.0123456,
                "time/train": 2.34567, LENGTH: 123.456}], peak=12345678)  # fmt: skip
TRAINED = Measured([12.3456] * 3, [23.4567] * 3, peak=123456789)


def shown_step() -> None:
    rows = [row_of(name, STEP, STEP) for name in ("stock TRL", "trl_ablate")]
    timing.publish("whole steps, 128 rollouts", rows, {}, timing.Path("/dev/null"))


def shown_train() -> None:
    names = ("stock TRL", "trl_ablate, extra forward", "trl_ablate")
    rows = rows_of(dict.fromkeys(names, TRAINED), Workload([300] * 8))
    timing.publish("training phase", rows, {}, timing.Path("/dev/null"))


def shown_sets() -> None:
    metrics = {REWARD: 0.5, "reward/g=[b]3": 0.5, "reward_stderr/g=[b]3": 0.012}
    one = {"questions": 1024, "metrics": metrics, "standard_errors": {REWARD: 0.0123}}
    names = ("math_500", "aime_2024", "minerva_math", "olympiad_bench")
    terminal.console.print(evaluate.table(dict.fromkeys(names, one), title="model"))


def shown_log() -> None:
    rows = [
        {"step": n, REWARD: n / 7, EVAL_REWARD: -n / 7e5, GRAD_NORM: n / 7e9} for n in range(99)
    ]
    inspect.show(Log(Owner("grpo"), rows), inspect.Replay([], {}, []))


CASES = {
    "bench step": (shown_step, ["s/step", "12.35", "CPU s", "s rollout", "1.235", "0.01235",
                                "peak", "GiB", "0.0115"]),
    "bench train": (shown_train, ["trl_ablate, extra forward", "peak", "GiB", "0.115"]),
    "evaluate": (shown_sets, ["olympiad_bench", "0.500 ± 0.012", "reward/g=[b]3"]),
    "plan": (lambda: plan.main(["--model", "1.5B"]), []),
    "table": (lambda: terminal.console.print(terminal.table("done", {"run": ("layer", LONG)})), []),
    "inspect": (shown_log, ["highest 14", "lowest -0.00014"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_table_is_not_cut(case):
    act, words = CASES[case]
    printed = in_terminal(act)
    assert case == "plan" or max(map(len, printed)) <= 80, printed  # it has sentences
    assert "…" not in "".join(printed)
    for word in words:
        assert any(word in line for line in printed), (word, printed)
    if case == "table":
        assert "".join("".join(printed).split()).count("a") >= 90


@pytest.mark.parametrize("seeds", [3, 12])
def test_the_grid_of_a_study_is_not_cut(tmp_path, seeds):
    name = "baseline_none--scale_rewards_none--mean--learning_rate_7.5e-06"
    planned, store = write_study(tmp_path, {"grpo": {"top": 0.8}, name: {"top": 0.4}}, range(seeds))
    for run in planned.runs().values():
        RunDirectory(store.path / run.id).update(status="stopped", reason=INTERRUPTED[0])
    printed = in_terminal(lambda: terminal.console.print(grid(StudyRuns(planned, store))))
    assert max(map(len, printed)) <= 80, printed
    assert "".join(printed[:-2]).count("…") == 2 * seeds  # the runs, which are interrupted
    assert name[:50] in "".join(printed) and name[-7:] in "".join(printed)


@pytest.mark.parametrize("study", ["papers", "chains_objective_04m"])
def test_a_plan_shows_what_differs_in_whole_words(tmp_path, study):
    words = ["plan", study, "--runs", str(tmp_path)]
    printed = in_terminal(lambda: main(words))
    text = "\n".join(printed)
    assert max(map(len, printed)) <= 80 and "…" not in text.replace("… interrupted", "")
    assert "--probe" in text and "unknown" not in text
    if study == "papers":
        assert "\nlite_ppo: length_norm token, loss_type dapo, scale_rewards batch\n" in text
        assert "\ndr_grpo: length_norm constant, loss_type dr_grpo, scale_rewards none\n" in text
    else:
        assert "\n  learning_rate: 3e-05 (here 0.0006), 7.5e-06 (here 0.00015)\n" in text
        assert "\n  scale_rewards: group, none\n" in text
