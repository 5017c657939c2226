"""pass@1 against pass@k over seeds: what rises, and what the report says of it."""

import pytest

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.growth import largest_k, sharpening_table
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

ARMS = {"grpo": {"top": 0.8}, "able": {"top": 0.7}, "narrow": {"top": 0.6}}
RISES = {"grpo": (0.4, 0.0), "able": (0.3, 0.2), "narrow": (0.2, -0.2)}


@pytest.fixture
def planted(tmp_path):
    """Three arms, three seeds; pass@8 begins at 0.5 and moves by what is planted, ± 0.01."""
    plan, store = make_plan(ARMS), RunStore(tmp_path / "runs")
    for arm in plan.arms:
        for run in arm.runs:
            rows = [dict(row) for row in learning_rows(run.seed, ARMS[arm.name]["top"])]
            evaluated = [row for row in rows if "eval_reward" in row]
            for place, row in enumerate(evaluated):
                share, noise = place / (len(evaluated) - 1), 0.01 * (run.seed - 1)
                rises = RISES[arm.name]
                row["eval_pass@1"] = 0.1 + share * (rises[0] + noise)
                row["eval_pass@8"] = 0.5 + share * (rises[1] + noise)
            write_run(store, run, ARMS[arm.name], rows)
    return plan, store


def test_each_arm_is_named_by_what_rose(planted, tmp_path):
    plan, store = planted
    analysis = analyse(planned_runs(plan, store), plan.primary_metric)
    assert largest_k(analysis) == 8
    section = sharpening_table(analysis)
    rows = {row[0]: row[1:] for row in section.blocks[0].rows}
    assert [rows[name][-1] for name in ARMS] == ["sharper", "more able", "narrower"]
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "## pass@1 and pass@k" in (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
    # three rises of 0.39, 0.4 and 0.41: t(0.975, 2) = 4.303 times 0.01 / sqrt(3)
    assert rows["grpo"][:4] == ["0.100", "+0.400 [+0.375, +0.425]", "0.500",
                                "+0.000 [−0.025, +0.025]"]  # fmt: skip


def test_without_samples_there_is_no_section(tmp_path):
    plan, store = make_plan(ARMS), RunStore(tmp_path / "runs")
    for arm in plan.arms:
        for run in arm.runs:
            write_run(store, run, ARMS[arm.name], learning_rows(run.seed, 0.5))
    assert not sharpening_table(analyse(planned_runs(plan, store), plan.primary_metric)).blocks
