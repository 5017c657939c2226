"""From nothing to the findings: plan, runs, reports and pages of a tiny list, with real runs; and
the committed numbers."""

import json
import os
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.support.warm import warm
from trl_ablate.cli import findings, study
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.json_files import read_object
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import beside, restore
from trl_ablate.study.report import making
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

STUDY = """
question: Does it differ?
arms: [grpo.yaml, std_dev_off.yaml]
seeds: {looks: [2]}
profile: miniature
overrides: {grpo_steps: 2, eval_size: 32, generation_batch_size: 32, optimizer_batch_size: 32,
  per_device_train_batch_size: 32, train_size: 64, report_to: none}
"""
ROW = {"question": "Without the std?", "part": "question", "study": "one",
       "arms": {"std_dev_off": "no std"}}  # fmt: skip


@pytest.fixture
def no_curves(monkeypatch):
    """Neither the slowest picture nor a disk that is flushed after each of hundreds of files: both
    take time, and change no number."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(making, "draw_curves", lambda *given, **how: b"")


@pytest.mark.slow
def test_the_findings_come_out_of_their_runs(tmp_path, capsys, no_curves):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "study.yaml").write_text(STUDY)
    chosen, runs = tmp_path / "findings.yaml", tmp_path / "runs"
    report = tmp_path / "one" / "report.json"
    chosen.write_text(json.dumps({"rows": [ROW]}))
    whole = ["--all", chosen, "--runs", runs]

    def done(command, *words) -> str:
        assert command.main([str(word) for word in words]) == 0
        return " ".join(capsys.readouterr().out.split())

    def page() -> str:
        return (tmp_path / "FINDINGS.md").read_text(encoding="utf-8").replace("\\", "")

    assert "4 different runs, 0 done" in done(study, "plan", *whole)
    ended = warm("study", "run", *whole, "--until", "decided").wait()
    assert ended.code == 0, ended.printed
    assert f"findings{chosen}--runs{runs}" in "".join(ended.stdout.split())  # lines may be broken
    done(findings, chosen, "--runs", runs)
    before, numbers = page(), report.read_bytes()
    ends = {
        arm["name"]: [last_reward(RunStore(runs), run["id"]) for run in arm["runs"]]
        for arm in read_object(runs / "studies" / "one.json")["arms"]
    }
    expected = fmean(ends["std_dev_off"]) - fmean(ends["grpo"])
    (shown,) = re.findall(r"no std (?:\| grpo \| )?([+−]\d\.\d{3})", before)
    assert float(shown.replace("−", "-")) == pytest.approx(expected, abs=6e-4)
    done(findings, chosen)  # from the reports alone
    assert page() == before

    runs.rename(tmp_path / "elsewhere")  # from the runs that are kept beside the studies
    assert "one: 4 runs restored" in done(study, "restore", *whole)
    assert "4 different runs, 4 done" in done(study, "plan", *whole)
    done(findings, chosen, "--runs", runs)
    assert report.read_bytes() == numbers


def last_reward(store: RunStore, run_id: str) -> float:
    rows = store.directory(run_id).metrics()
    return [row["eval_reward"] for row in rows if row.get("eval_reward") is not None][-1]


KEPT = [
    file for file in sorted(SHIPPED.glob("studies/*/study.yaml"))
    if beside(file).is_file() and (file.parent / "report.json").is_file()
]  # fmt: skip
assert len(KEPT) > 20


QUICK = {"chains_controls", "chains_off_policy", "chains_questions", "words_std"}
"""Pairs at looks; factors; in two parts after tuning; in two parts before the first look."""


def of_study(file: Path) -> Any:
    name = file.parent.name
    return pytest.param(file, id=name, marks=[] if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("file", map(of_study, KEPT))
def test_a_committed_report_comes_out_of_its_committed_runs(file, tmp_path, no_curves):
    """Its text byte by byte, but for the number of settings, which grows with the package, and for
    fitted curves, whose last digits depend on the version of SciPy."""
    plan, store = resolve_plan(load_study(file)), RunStore(tmp_path / "runs")
    restored = restore(StudyRuns(plan, store), beside(file))
    committed = read_object(file.parent / "report.json")
    assert len(restored) >= committed["details"]["runs"] > 0  # more: trials of tuned arms
    making.report_study(plan, store, file, tmp_path)
    assert_same(read_object(tmp_path / "report.json"), committed)
    made, before = (
        re.sub(r"all \d+ settings|## Learning curves\n.*?(?=\n## )", "", text, flags=re.DOTALL)
        for text in ((at / "REPORT.md").read_text("utf-8") for at in (tmp_path, file.parent))
    )
    assert made == before


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
