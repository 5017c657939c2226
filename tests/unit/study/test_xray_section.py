"""The report of a study with an X-ray, and the runs that it makes needless."""

from tests.support.synthetic_study import METRIC, learning_rows, make_plan, write_run
from trl_ablate.run.json_files import write_json
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.xray_outcomes import TITLE, xray_section
from trl_ablate.study.store import RunStore
from trl_ablate.study.xray_file import xray_folder

ARMS = {"grpo": {"top": 0.8}, "std_dev_off": {"top": 0.81}, "no_baseline": {"top": 0.2}}


def entry(verdict, cosine, **more):
    return {"checkpoint": "base", "verdict": verdict, "cosine_mean": cosine, "norm_ratio": 0.5,
            **more}  # fmt: skip


def a_study(tmp_path, against=None):
    plan, store = make_plan(ARMS), RunStore(tmp_path / "runs")
    for arm in plan.arms:
        for run in arm.runs:
            write_run(store, run, ARMS[arm.name], learning_rows(run.seed, **ARMS[arm.name]))
    return plan, store, analyse(planned_runs(plan, store), METRIC, "final", against)


def write_xray(store, plan, against=None):
    arms = {
        "grpo": [entry("reference", 1.0)],
        "std_dev_off": [entry("only rescales", 0.997)],
        "no_baseline": [entry("other direction, against", -0.27, drift=8)],
    }
    folder = xray_folder(store, plan.study)
    folder.mkdir(parents=True, exist_ok=True)
    skipped = {"group_size_16": "generates differently: num_generations is 16, not 8"}
    write_json(folder / "xray.json", {"reference": "grpo", "against": against or {}, "arms": arms,
                                      "skipped": skipped})  # fmt: skip


def test_it_sets_the_xray_beside_the_runs(tmp_path):
    plan, store, analysis = a_study(tmp_path)
    assert not xray_section(store, plan.study, analysis).blocks
    write_xray(store, plan)
    section = xray_section(store, plan.study, analysis)
    rows = section.blocks[0].rows
    assert [row[:4] for row in rows] == [
        ["std_dev_off", "base", "only rescales", "0.997"],
        ["no_baseline", "base + 8 steps", "other direction, against", "−0.270"],
        ["group_size_16", "", "out of reach: it generates differently: num_generations is 16, "
         "not 8", ""],
    ]  # fmt: skip
    means = {arm.name: arm.intervals["final"].mean for arm in analysis.arms}
    assert rows[0][5] == f"better: {means['std_dev_off']:.3f} against " + (f"{means['grpo']:.3f}")
    assert rows[1][5].startswith("worse: 0.")
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert f"## {TITLE}" in (tmp_path / "out" / "REPORT.md").read_text()


def test_another_reference_in_the_study_is_not_tested(tmp_path):
    plan, store, analysis = a_study(tmp_path, {"no_baseline": "std_dev_off"})
    write_xray(store, plan)
    assert xray_section(store, plan.study, analysis).blocks[0].rows[1][5].endswith("(not tested)")
    write_xray(store, plan, {"no_baseline": "std_dev_off"})
    row = xray_section(store, plan.study, analysis).blocks[0].rows[1]
    assert row[0] == "no_baseline (against std_dev_off)"
    assert row[5].startswith("worse: 0.")
