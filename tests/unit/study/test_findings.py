"""The findings: the committed pages and the numbers in their sentences, planted reports with what
those do not have, and predictions for published runs."""

import functools
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from pyarrow import parquet
from scipy import integrate, stats

from tests.support.synthetic_study import write_study
from trl_ablate import ConfigurationError
from trl_ablate.cli import findings, study_runs
from trl_ablate.cli.findings import main, pages_of, write_reports
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import kept
from trl_ablate.study.questions_list import LIST, read_findings
from trl_ablate.study.report import found_answers
from trl_ablate.study.report.findings_page import (
    FILE,
    README_HEADING,
    Contrast,
    contrasts,
    foretold,
    readme_section,
    right_share,
    so_far,
    with_section,
)
from trl_ablate.study.report.found_answers import read_report
from trl_ablate.study.runs import StudyRuns

STUDIES = SHIPPED / "studies"


def test_the_committed_pages_are_those_of_the_committed_reports():
    *_, pages = pages_of(LIST, SHIPPED.parent / "README.md")
    assert {"FINDINGS.md", "ANSWERS.md"} <= {path.name for path in pages}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run trl-ablate findings: {path} differs"
    if "(findings.png)" in pages[STUDIES / "FINDINGS.md"]:
        assert (STUDIES / "findings.png").is_file()


def test_runs_that_two_studies_keep_are_the_same():
    found: dict[tuple, float] = {}
    for file in sorted(SHIPPED.glob("studies/*/runs.parquet")):
        table = parquet.read_table(file, columns=["run", "step", "eval_answer_reward"]).drop_null()
        for run, step, value in zip(*(column.to_pylist() for column in table), strict=True):
            assert found.setdefault((run, step), value) == value, (file, run, step)


def test_no_kept_run_names_a_place_of_its_machine():
    for file in sorted(SHIPPED.glob("studies/*/runs.parquet")):
        table = parquet.read_table(file, columns=["run", "settings", "record"]).drop_null()
        for run, *texts in zip(*(column.to_pylist() for column in table), strict=True):
            assert not any('"/' in text for text in texts), (file, run)


def test_runs_that_are_not_there_and_an_installed_list_are_refused(capsys, monkeypatch):
    assert main(["--runs", "nowhere"]) == 2
    assert "--runs nowhere is not a folder" in capsys.readouterr().err
    monkeypatch.setattr(findings, "PACKAGE", SHIPPED.parent)
    for words in ([], [os.path.relpath(LIST)]):
        assert main(words) == 2
        assert "the shipped list belongs to an installed package" in capsys.readouterr().err


def test_a_report_is_written_again_if_arms_share_runs(tmp_path, monkeypatch):
    """Its number of runs counts those of every arm."""
    plan, store = write_study(tmp_path / "runs", {"a": {"top": 0.5}, "same": {"top": 0.5}})
    monkeypatch.setattr(study_runs, "known", lambda file, runs: StudyRuns(plan, store))
    write_json(tmp_path / "findings.yaml", {"rows": [asked()]})
    write_json(tmp_path / "one" / "study.yaml", {})
    for _ in range(2):
        (tmp_path / "one" / "REPORT.md").unlink(missing_ok=True)
        write_reports(tmp_path / "findings.yaml", tmp_path / "runs")
        assert (tmp_path / "one" / "REPORT.md").is_file()


def test_the_shipped_list_names_arms_of_its_studies_with_expectations():
    rows = read_findings(LIST)
    for row in rows:
        study = load_study(STUDIES / row.study / "study.yaml")
        names = {found.name.partition("--")[0] for found in study.arms}  # tuned: one at each value
        assert set(row.arms) <= names
        if row.part in ("question", "control"):
            assert set(row.arms) <= set(study.expect), row.study
    files = [*STUDIES.glob("chains*/study.yaml"), *STUDIES.glob("gym_*/study.yaml")]
    assert {path.parent.name for path in files} == {name for row in rows for name in row.studies}


GRPO, OFF_POLICY = "grpo--learning_rate_3e-05", "chains_two_steps"
TWO_STEPS = "off_policy_e1_tb64--learning_rate_1.5e-05"
TRIALS = 10_000
"""The first seed of trials."""


@functools.cache
def curves(study: str) -> dict[str, list[np.ndarray]]:
    """Arm -> steps and evaluations of its runs, without trials."""
    found = defaultdict(list)
    for run in kept(STUDIES / study / "runs.parquet").values():
        record = json.loads(run.record)
        if record["seed"] < TRIALS:
            points = [(r["step"], r["eval_reward"]) for r in run.rows if "eval_reward" in r]
            found[record["arm"]].append(np.array(points).T)
    return found


def last_third(curve: np.ndarray) -> float:
    steps, values = curve[:, curve[0] > 40]
    return integrate.trapezoid(values, steps) / (steps[-1] - steps[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "study", "arm", "against", "at_the_end"),
    [
        ("+0.092 [+0.072, +0.112]", "chains_on_policy", "reuse--learning_rate_3e-05", GRPO, False),
        ("+0.035 [+0.019, +0.051]", OFF_POLICY, "dapo--learning_rate_3e-05", TWO_STEPS, 1),
        ("−0.017 [−0.033, −0.002]", OFF_POLICY, "sapo--learning_rate_1.5e-05", TWO_STEPS, 1),
        ("−0.026 [−0.051, −0.001]", OFF_POLICY, "gspo--learning_rate_3e-05", TWO_STEPS, 1),
    ],
)  # fmt: skip
def test_a_number_in_a_sentence_comes_out_of_the_kept_runs(words, study, arm, against, at_the_end):
    """Of the runs that succeed, by SciPy."""
    runs = curves(study)
    base = np.mean([curve[1][0] for curve in runs[against]])
    half = (base + np.median([last_third(curve) for curve in runs[against]])) / 2
    ours, theirs = (
        [curve[1][-1] if at_the_end else last_third(curve) for curve in runs[name]
         if last_third(curve) >= half] for name in (arm, against)
    )  # fmt: skip
    limits = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    numbers = [np.mean(ours) - np.mean(theirs), *limits]
    assert words == "{:+.3f} [{:+.3f}, {:+.3f}]".format(*numbers).replace("-", "−")
    assert words in (STUDIES / "FINDINGS.md").read_text(encoding="utf-8")


def write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def arm(verdict: str, difference: float | None = 0.1, **other: Any) -> dict[str, Any]:
    """An entry of `arms` and that of its details, in one."""
    limits = [None if difference is None else difference + by for by in (-0.05, 0.05)]
    numbers = {"difference": difference, "low": limits[0], "high": limits[1], "pairs": 5}
    p_values = {"p_difference": 0.001, "p_equivalent": 0.001, "equivalence_margin": 0.05}
    details = {"against": "grpo", "expected": "better", "agreement": "open", "next_look": 8}
    return {
        "verdict": verdict, "collapsed": [0, 5], "disagreement": None,
        **numbers, **p_values, **details, **other,
    }  # fmt: skip


def report(arms: dict[str, dict], effects=(), **details: Any) -> dict[str, Any]:
    """Effects are pairs: numbers, and the sentence."""
    sentences = [sentence for _, sentence in effects]
    details = {"means": {}, "mixed": [], "arms": arms, "sentences": sentences, **details}
    return {"arms": arms, "effects": [numbers for numbers, _ in effects], "details": details}


def asked(study: str = "one", part: str = "question", **other: Any) -> dict[str, Any]:
    return {"question": f"What of {study}?", "part": part, "study": study, **other}


@pytest.fixture
def written(tmp_path):
    """Writes a list, its studies and reports; returns the pages by name."""

    def written(rows: list[dict], reports: dict[str, dict]):
        for name in {name for row in rows for name in row.get("worlds", [row["study"]])}:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "study.yaml").touch()
        for name, found in reports.items():
            write_json(tmp_path / name / "report.json", found)
        (tmp_path / "findings.yaml").write_text(json.dumps({"rows": rows}))
        *_, pages = pages_of(tmp_path / "findings.yaml", None)
        return {path.name: text.replace("\\", "") for path, text in pages.items()}

    return written


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0].strip()


SHOWN = "+0.100 [+0.050, +0.150]"


def test_a_collapse_of_most_runs_is_the_answer_whatever_the_verdict(written):
    arms = {"a": arm("not decided", -0.6, collapsed=[4, 5]), "b": arm("worse", collapsed=[2, 5])}
    arms["c"] = arm("better", collapsed=[5, 5], collapses=False)  # less deep than its reference
    why = {"better": "It sees more.", "collapse": "It sees less."}
    words = {"a": "this", "b": "that", "c": "more"}
    rows = [asked(arms=words, why=why, overturned_by="more runs.")]
    page = written(rows, {"one": report(arms, mixed=["a"])})["FINDINGS.md"]
    assert section(page, "First").startswith(
        "1. **What of one?** This collapses in 4 of 5 runs (−0.600 [−0.650, −0.550] †, 5 seeds "
        "against grpo). It sees less."
    )
    rows = section(page, "Decided").splitlines()[-3:]
    assert [row.split(" | ")[-2] for row in rows] == ["collapse", "worse", "better"]


@pytest.mark.parametrize(("others", "mark"), [(0, ""), (4, " ‡")])
def test_claims_are_corrected_over_the_page(written, others, mark):
    """Of ten claims the only small p-value must be below 0.005; of two, below 0.025."""
    of_all = {"p_equivalent": 1.0, "successes": [[20, 32], [63, 64]]}
    arms = {"a": arm("fails more often", -0.1, p_difference=0.01, **of_all)}
    arms |= {f"open{n}": arm("not decided", p_difference=0.9, **of_all) for n in range(others)}
    page = written([asked(arms={name: name for name in arms})], {"one": report(arms)})
    row = f"| −0.100 [−0.150, −0.050]{mark} | 20 of 32, 63 of 64 | fails more often |"
    assert row in page["FINDINGS.md"]


def test_which_arms_keep_their_verdict_on_other_bases(written):
    kinds = {"a": ("worse", "worse"), "b": ("worse", "equivalent"), "c": ("worse", "undecided")}
    reports = {
        study: report({name: arm(pair[n]) for name, pair in kinds.items()})
        for n, study in enumerate(("one", "two"))
    }
    rows = [asked(part="carry", worlds={"one": "first", "two": "second"})]
    page = written(rows, reports)["FINDINGS.md"]
    found = section(page, "Other bases and worlds").splitlines()[2:]
    assert [line.split(" | ")[-1] for line in found] == ["yes |", "no |", "cannot say |"]
    assert found[0].startswith(f"| a | worse, {SHOWN} (5 pairs) | worse, {SHOWN} (5 pairs) |")


def test_what_has_no_runs_yet_is_named(written):
    """Studies share runs, so that one may have a few of its runs before it is begun."""
    none, some = arm("undecided", None, pairs=0), arm("too few seeds", None, pairs=1)
    partial = ({"verdict": "too few seeds", "estimate": 0.1}, None)
    cells = report({"b": arm("better")}, [partial], means={"a": 0.2, "b": 0.5})
    found = {
        "one": report({"a": none}), "two": report({"a": none, "b": some}), "four": cells,
        "three": report({"a cell": none, "another": some}, [partial]),
    }  # fmt: skip
    of_worlds = asked("four", "carry", worlds={"four": "small", "five": "other"})
    rows = [
        asked(arms={"a": "it"}), asked("two", arms={"a": "the one", "b": "the other"}),
        asked("three", "factors"), of_worlds | {"cells": {"b for a": ["b", "a"]}},
    ]  # fmt: skip
    page = written(rows, found)["FINDINGS.md"]
    assert section(page, "Not run yet").splitlines() == [
        "- What of one? (one)", "- What of two? the one (two)", "- What of three? (three)",
        "- What of four? other (five)",
    ]  # fmt: skip
    words = "- [What of two?](two/REPORT.md) the other – (1 pair)."
    assert section(page, "Not decided") == words and "What depends on what" not in page
    assert "| b for a | +0.300 (5) | – |" in page
    with pytest.raises(ConfigurationError, match="'x' has b, c; name two cells of four, such as a"):
        written([of_worlds | {"cells": {"x": ["b", "c"]}}], found)


def test_an_arm_that_no_study_has_is_refused(written, monkeypatch):
    """One that the study has is not run yet."""
    study: Any = SimpleNamespace(arms=[SimpleNamespace(name=name) for name in ("off", "new--1")])
    monkeypatch.setattr(found_answers, "load_study", lambda path: study)
    one = {"one": report({"off": arm("better")})}
    written([asked(arms={"off": "it", "new": "the other"})], one)
    with pytest.raises(ConfigurationError, match="has no arm 'of'; did you mean 'off'"):
        written([asked(arms={"of": "it"})], one)


def test_an_x_ray_counts_where_it_compares_the_same_arms_as_the_runs(written, tmp_path):
    def point(verdict, cosine):
        return {"checkpoint": "base", "verdict": verdict, "cosine_mean": cosine}

    xrays = {
        "grpo": [point("reference", 1.0)],
        "a": [point("inert", 1.0), point("reweights length, noisier", 0.8)],
        "b": [point("other direction", 0.1)],
        "c": [point("only rescales", 1.0)],
    }
    found = {"arms": xrays, "against": {"a": "grpo", "b": "x", "c": "grpo"}}
    write_json(tmp_path / "one" / "xray.json", found)
    arms = {"a": arm("worse", -0.3), "b": arm("better"), "c": arm("equivalent")}
    page = written([asked(arms={name: name for name in arms})], {"one": report(arms)})
    text = section(page["FINDINGS.md"], "X-ray and outcomes")
    assert "| reweights | 1 | 0 | 0 |\n| only rescales | 0 | 1 | 0 |\n\n" in text
    assert "over 2 arms: too few" in text and "(xray.png)" in text
    assert main([str(tmp_path / "findings.yaml")]) == 0
    assert (tmp_path / "xray.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"study": "one", "part": "question"}, "has no `question`"),
        (asked("gone"), "study 'gone' of 'What of gone?' does not exist"),
        (asked("x" * 300), "does not exist"),
        (asked(part="answer"), "it takes one of"),
        (asked(armz={}), "unknown key 'armz'"),
        (asked(why={"perhaps": "so"}), "it takes one of"),
        (asked(part="carry"), "worlds belong to part 'carry'"),
    ],
)
def test_wrong_lists_are_refused(tmp_path, row, complaint):
    write_json(tmp_path / "one" / "study.yaml", {})
    write_json(tmp_path / "findings.yaml", {"rows": [row]})
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        read_findings(tmp_path / "findings.yaml")


PREDICTIONS = yaml.safe_load((STUDIES / FILE).read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("row", PREDICTIONS, ids=lambda row: row["words"])
def test_what_is_foretold_follows_from_the_study(row):
    assert foretold(read_report(STUDIES / row["study"]) or {}, row["arm"]) == row.get("predicts")


RUNS = """group,arm,seed,step,score
A,plain,0,0,0.1
A,plain,0,9,0.5
A,plain,1,9,0.4
A,new,0,9,0.1
A,new,1,9,0.7
B,plain,0,9,0.9
B,new,0,9,0.1
"""


def test_a_comparison_with_published_runs_by_hand(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "runs.csv").write_text(RUNS)
    both = [["runs.csv", group, "new", "plain"] for group in ("A", "B")]
    kinds = {"worse": ("worse", 0), "collapsed": ("worse", 2), "equal": ("equivalent", 0)}
    rows = [{"study": name, "arm": "new", "words": name, "published": both} for name in kinds]
    (tmp_path / FILE).write_text(yaml.safe_dump({"rows": rows}))
    for name, (verdict, collapsed) in kinds.items():
        entry = {"verdict": verdict, "collapsed": [collapsed, 3]}
        write_json(tmp_path / name / "report.json", {"arms": {"new": entry}})
    lower, fails, nothing = contrasts(tmp_path)
    assert (lower.predicts, fails.predicts, nothing.predicts) == ("lower", "fails", None)
    differences = {"runs A": (pytest.approx(-0.05), 2), "runs B": (pytest.approx(-0.8), 1)}
    assert lower.published == differences == nothing.published and nothing.right == {}
    # in A: means 0.4 and 0.45; a run fails below the median of 0.3 and 0.2, which one of new does
    assert [*lower.right.values()] == [True, True] and [*fails.right.values()] == [True, True]
    assert right_share([lower]).startswith("2 of 2 contrasts came as foretold: 100 %")
    assert contrasts(tmp_path / "nowhere") == []
    (tmp_path / "published" / "runs.csv").unlink()  # as in a wheel
    assert contrasts(tmp_path) == []


def scales(toy: float, small: tuple | None, runs: int = 4) -> Contrast:
    """Half-widths of 0.3, in three pairs of five runs, and, if it is given, 0.4; published runs of
    two groups."""
    keys = ("difference", "low", "high")
    entry = arm("worse", toy, low=toy - 0.3, high=toy + 0.3, pairs=3)
    other = small and dict(zip(keys, small, strict=True), collapsed=[0, runs])
    there = {"olmo_a A": (0.154, 4), "qwen_math std": (-0.7, 1)}
    return Contrast("new", entry, other, there, None, {})


def test_the_effects_at_three_scales_and_how_far_two_are_apart():
    found = scales(-0.6, (0.1, -0.3, 0.5))
    effects = ["−0.60 [−0.90, −0.30] (3)", "+0.10 [−0.30, +0.50] (4)"]
    assert found.columns == [*effects, "A +0.15 (4), math −0.70 (1)"]
    assert found.apart == "−0.70 [−1.20, −0.20]"  # 3, 4, 5
    early, never = scales(-0.6, (0.1, None, None)), scales(-0.6, None)
    assert (early.columns[1], early.apart) == ("+0.10 (4)", "–")
    assert (never.columns[1], never.apart) == ("–", "–")


def test_the_readme_has_the_effects_that_the_small_model_has_in_four_runs():
    few, none = scales(0.2, (0.1, 0.0, 0.2), runs=3), scales(0.2, None)
    assert readme_section([few, none]) is None
    section = readme_section([few, none, scales(-0.6, (0.1, -0.3, 0.5))])
    rows = [row for row in section.splitlines() if row.startswith("| new")]
    assert [row.split(" | ")[1] for row in rows] == ["−0.60 [−0.90, −0.30] (3)"]
    text = with_section(f"# Top\n\n{README_HEADING}\nold\n\n## Switches\n\nlast\n", section)
    assert "old" not in text and text.endswith("\n## Switches\n\nlast\n")


def test_before_the_first_look_the_means_of_all_runs_are_compared():
    entry = {"difference": None, "against": "plain"}
    early = report({"a": entry, "b": entry}, means={"a": 0.5, "b": None, "plain": 0.4})
    assert so_far(early, "a")["difference"] == pytest.approx(0.1)
    assert so_far(early, "b") is None
    decided = report({"a": entry | {"difference": 0.3}}, means={"a": 0.5, "plain": 0.4})
    assert so_far(decided, "a")["difference"] == 0.3
