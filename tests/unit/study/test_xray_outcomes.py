"""What an X-ray says beside what the runs said: in the report of a study, and over all arms."""

import json

import numpy as np
import pytest
from scipy import stats

from tests.support.synthetic_study import METRIC, learning_rows, make_plan, write_run
from trl_ablate.cli.main import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import write_json
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.xray_outcomes import (
    TITLE,
    Pair,
    correlation,
    markdown,
    pairs_of,
    xray_section,
)
from trl_ablate.study.store import RunStore
from trl_ablate.study.xray_file import xray_folder

COSINES = {"grpo": 1.0, "same": 0.99, "turned": 0.7, "across": 0.1, "against": -0.3, "not_run": 0.5}
FINALS = {"grpo": (0.8, 0.9), "same": (0.84, 0.88), "turned": (0.9, 0.94), "across": (0.7, 0.72),
          "against": (0.1, 0.2)}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    arms = {name: [{"cosine_mean": value, "verdict": "x"}] for name, value in COSINES.items()}
    (tmp_path / "xray.json").write_text(json.dumps({"reference": "grpo", "arms": arms}))
    lines = ["arm,status,final_eval_reward,collapsed_at"]
    for arm, values in FINALS.items():
        end = "20.0" if arm == "against" else ""
        lines += [f"{arm},finished,{value},{end}" for value in values]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "same,running,,", "same,failed,0.1,"]))
    return tmp_path / "xray.json", tmp_path / "runs.csv"


def test_pairs_and_their_rank_correlation(files):
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert set(pairs) == {"same", "turned", "across", "against"}
    assert pairs["across"].distance == pytest.approx(0.9)
    assert pairs["across"].difference == pytest.approx(-0.14)
    assert pairs["across"].outcome == pytest.approx(0.14)
    assert (pairs["against"].collapsed, pairs["same"].runs) == (2, 2)
    # outcomes 0.01, 0.07, 0.14, 0.70 in the order of the distances
    found = correlation(list(pairs.values()))
    assert found.mean == pytest.approx(1)
    assert found.low <= found.mean == found.high
    assert correlation(list(pairs.values())[:3]) is None


def test_an_outcome_is_against_the_arm_that_the_gradient_is_compared_with(files):
    found = json.loads(files[0].read_text())
    files[0].write_text(json.dumps(found | {"against": {"across": "turned"}}))
    pairs = {pair.arm: pair for pair in pairs_of(*files)}
    assert pairs["across"].difference == pytest.approx(0.71 - 0.92)
    assert pairs["turned"].difference == pytest.approx(0.92 - 0.85)


@pytest.mark.slow
def test_the_command(files, tmp_path, capsys):
    word = f"{files[0]}={files[1]}"
    assert main(["xray", "--outcomes", word, "--output", str(tmp_path / "out")]) == 0
    assert "Rank correlation of distance and outcome over 4 arms: +1.00" in capsys.readouterr().out
    assert (tmp_path / "out" / "OUTCOMES.md").read_text() == markdown(pairs_of(*files))
    assert (tmp_path / "out" / "outcomes.png").read_bytes().startswith(b"\x89PNG")


def test_outcomes_without_the_reference_are_refused(files):
    files[1].write_text("arm,final_eval_reward,collapsed_at\nsame,0.8,\n")
    with pytest.raises(ConfigurationError, match="has no finished run of 'grpo'"):
        pairs_of(*files)


def test_the_correlation_and_its_bootstrap_are_those_of_scipy():
    rng = np.random.default_rng(1)
    distances, differences = rng.random(12), rng.normal(size=12).round(1)  # with ties
    pairs = [Pair("s", str(n), "x", *both, 0, 1, True)
             for n, both in enumerate(zip(distances, differences, strict=True))]  # fmt: skip
    draw = np.random.default_rng(0)
    draws = [draw.integers(0, 12, 12) for _ in range(2000)]
    values = [stats.spearmanr(distances[d], abs(differences[d])).statistic for d in draws]
    whole, found = stats.spearmanr(distances, abs(differences)).statistic, correlation(pairs)
    low, high = np.quantile(values, [0.025, 0.975])
    assert (found.mean, found.low, found.high) == pytest.approx((whole, low, high))


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
