"""From nothing to the findings: plan, runs, reports and pages of a tiny list, with real runs."""

import json
import re
from typing import Any

import pytest

from tests.support.warm import warm
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_object
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import beside, restore
from trl_ablate.study.report.making import report_study
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

HEAD = """
profile: miniature
overrides: {grpo_steps: 2, eval_size: 64, report_to: none}
"""
STUDIES = {
    "one": "question: Does it differ?\narms: [grpo.yaml, std_dev_off.yaml]\nseeds: {looks: [2]}\n",
    "two": "question: Together?\nseeds: [0]\nfactors: {scale_rewards: [group, none], "
    "length_norm: [mean, constant]}\n",
}
ROWS = [
    {"question": "Without the std?", "part": "question", "study": "one",
     "arms": {"std_dev_off": "no std"}},
    {"question": "Both?", "part": "factors", "study": "two"},
]  # fmt: skip


@pytest.mark.slow
def test_the_findings_come_out_of_their_runs(tmp_path):
    for name, text in STUDIES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.yaml").write_text(text + HEAD)
    chosen, runs = tmp_path / "findings.yaml", tmp_path / "runs"
    chosen.write_text(json.dumps({"rows": ROWS}))
    whole = ["--all", chosen, "--runs", runs]

    def done(*words) -> str:
        ended = warm(*words).wait()
        assert ended.code == 0, ended.printed
        return " ".join(ended.stdout.split())

    assert "6 different runs, 0 done" in done("study", "plan", *whole)
    done("findings", chosen)
    assert "Without the std? (one)" in (tmp_path / "FINDINGS.md").read_text()
    assert "trl-ablate findings --runs" in done("study", "run", *whole, "--until", "decided")
    assert "6 different runs, 6 done" in done("study", "plan", *whole)
    done("findings", chosen, "--runs", runs)

    text = (tmp_path / "two" / "REPORT.md").read_text(encoding="utf-8")
    assert "scale_rewards: on average none" in text
    assert (tmp_path / "two" / "effects.png").is_file()

    page = (tmp_path / "FINDINGS.md").read_text(encoding="utf-8").replace("\\", "")
    assert "Not run yet" not in page
    plan = json.loads((runs / "studies" / "one.json").read_text())
    store = RunStore(runs)
    ids = [[run["id"] for run in arm["runs"][:2]] for arm in plan["arms"]]
    ends = [[last_reward(store.directory(name)) for name in of_arm] for of_arm in ids]
    expected = sum(b - a for a, b in zip(*ends, strict=True)) / 2
    (shown,) = re.findall(r"no std (?:\| grpo \| )?([+−]\d\.\d{3})", page)
    assert float(shown.replace("−", "-")) == pytest.approx(expected, abs=6e-4)
    before = page
    done("findings", chosen)  # from the reports alone
    assert (tmp_path / "FINDINGS.md").read_text(encoding="utf-8").replace("\\", "") == before

    runs.rename(tmp_path / "elsewhere")  # from the runs that are kept beside the studies
    reports = {name: (tmp_path / name / "report.json").read_bytes() for name in STUDIES}
    assert "one: 4 runs restored" in done("study", "restore", *whole)
    assert "6 different runs, 6 done" in done("study", "plan", *whole)
    done("findings", chosen, "--runs", runs)
    assert reports == {name: (tmp_path / name / "report.json").read_bytes() for name in STUDIES}


KEPT = [
    file for file in sorted(SHIPPED.glob("studies/*/study.yaml"))
    if beside(file).is_file() and (file.parent / "report.json").is_file()
]  # fmt: skip
assert len(KEPT) > 20


@pytest.mark.slow
@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_committed_numbers_come_out_of_committed_runs(file, tmp_path):
    plan, store = resolve_plan(load_study(file)), RunStore(tmp_path / "runs")
    restored = restore(StudyRuns(plan, store), beside(file))
    committed = read_object(file.parent / "report.json")
    assert len(restored) >= committed["details"]["runs"] > 0  # more: trials of tuned arms
    report_study(plan, store, file, tmp_path)
    assert_same(read_object(tmp_path / "report.json"), committed)


@pytest.mark.slow
def test_the_committed_leverage_comes_out_of_its_committed_runs(tmp_path):
    file, runs, page = SHIPPED / "studies" / "leverage", tmp_path / "runs", tmp_path / "PAGE.md"
    for words in (("study", "restore", file), ("leverage", "leverage", "--out", page)):
        assert warm(*words, "--runs", runs).wait().code == 0
    assert page.read_text(encoding="utf-8") == (file / "LEVERAGE.md").read_text(encoding="utf-8")


def assert_same(one: Any, other: Any) -> None:
    """Equal but for the last digits: the runs are kept as float32, and processors differ."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == (
            pytest.approx(other, rel=1e-5, abs=1e-6) if isinstance(other, float) else other
        )


def last_reward(run: RunDirectory) -> float:
    rows = run.metrics()
    return [row["eval_reward"] for row in rows if row.get("eval_reward") is not None][-1]
