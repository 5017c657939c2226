"""The findings: a list of questions, planted reports with every kind of verdict, the pages, and
predictions for published runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.support.factorial_study import factorial_plan, write_factorial
from tests.support.synthetic_study import learning_rows, write_run, write_study
from tests.support.tuned_study import tuned_plan
from trl_ablate import ConfigurationError
from trl_ablate.cli.findings import main, pages_of
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.definition import load_study
from trl_ablate.study.questions_list import LIST, Question, read_findings
from trl_ablate.study.report.answer_pictures import draw_answers
from trl_ablate.study.report.findings_page import (
    FILE,
    README_HEADING,
    contrasts,
    foretold,
    right_share,
    so_far,
)
from trl_ablate.study.report.found_answers import find, read_report
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

STUDY = "question: Is it so?\narms: [grpo.yaml]\nseeds: [0]\n"
README = f"# Top\n\n{README_HEADING}\nold rows\n\n## Switches\n\nlast\n"


def arm(verdict: str, difference: float | None = 0.1, **other: Any) -> dict[str, Any]:
    """An entry of `arms`, with its details beside it."""
    known = difference is not None
    details = {
        "against": "grpo", "expected": "better", "agreement": "open",
        "next_look": 8, "disagreement": None,
    }  # fmt: skip
    entry = {
        "verdict": verdict, "difference": difference, "low": difference - 0.05 if known else None,
        "high": difference + 0.05 if known else None, "pairs": 5, "collapsed": [0, 5],
        "equivalence_margin": 0.05, "p_difference": 0.001, "p_equivalent": 0.001,
    }  # fmt: skip
    for key, value in other.items():
        (entry if key in entry else details)[key] = value
    return {"entry": entry, "details": details}


def effect(name: list[str], levels: list, estimate: float, verdict: str, sentence: str | None):
    entry = {"factors": name} if len(name) > 1 else {"factor": name[0]}
    numbers = {"estimate": estimate, "low": estimate - 0.1, "high": estimate + 0.1}
    return ({**entry, "levels": levels, **numbers, "verdict": verdict}, sentence)


def report(arms: dict[str, dict], effects=(), mixed=()) -> dict[str, Any]:
    return {
        "reference": "grpo", "metric": "eval_reward", "curves": {},
        "arms": {name: each["entry"] for name, each in arms.items()},
        "effects": [entry for entry, _ in effects],
        "details": {
            "question": "Is it so?", "runs": 48, "margin": 0.05, "means": {}, "mixed": list(mixed),
            "arms": {name: each["details"] for name, each in arms.items()},
            "sentences": [sentence for _, sentence in effects],
        },
    }  # fmt: skip


def study_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(STUDY)
    return folder / "study.yaml"


def write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.fixture
def written(tmp_path):
    """Writes a list, its studies and reports; returns the pages by name."""

    def written(rows: list[dict], reports: dict[str, dict]):
        for name in {name for row in rows for name in row.get("worlds", [row["study"]])}:
            study_in(tmp_path / name)
        for name, found in reports.items():
            write_json(tmp_path / name / "report.json", found)
        (tmp_path / "findings.yaml").write_text(json.dumps({"rows": rows}))
        (tmp_path / "TOP.md").write_text(README)
        *_, pages = pages_of(tmp_path / "findings.yaml", tmp_path / "TOP.md")
        return {path.name: text.replace("\\", "") for path, text in pages.items()}

    return written


def asked(study: str = "one", part: str = "question", **other: Any) -> dict[str, Any]:
    return {"question": f"What of {study}?", "part": part, "study": study, **other}


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0].strip()


SHOWN = "+0.100 [+0.050, +0.150]"


@pytest.mark.parametrize(
    "verdict", ["not decided", "undecided", "not distinguishable", "too few seeds"]
)
def test_an_open_arm_is_named_with_its_interval(written, verdict):
    arms = {"a": arm(verdict), "b": arm(verdict, disagreement="the t test finds it")}
    rows = [asked(arms={"a": "it", "b": "that"})]
    page = written(rows, {"one": report(arms)})["FINDINGS.md"].replace("\n  ", " ")
    assert section(page, "Not decided") == (
        f"- [What of one?](one/REPORT.md) it {SHOWN} (5 pairs); that {SHOWN} (5 pairs, two tests "
        "disagree)."
    )
    assert "## Decided" not in page and "Not run yet" not in page


def test_a_study_that_another_replaces_has_no_rows(written):
    rows = [asked(arms={"a": "it"}, replaced_by="two"), asked("two", arms={"a": "it"})]
    page = written(rows, dict.fromkeys(("one", "two"), report({"a": arm("worse")})))["FINDINGS.md"]
    assert "one/REPORT.md" not in page and "two/REPORT.md" in page


def test_a_collapse_of_most_runs_is_the_answer_whatever_the_verdict(written):
    arms = {"a": arm("not decided", -0.6, collapsed=[4, 5]), "b": arm("worse", collapsed=[2, 5])}
    why = {"better": "It sees more.", "collapse": "It sees less."}
    rows = [asked(arms={"a": "this", "b": "that"}, why=why, overturned_by="more runs.")]
    pages = written(rows, {"one": report(arms, mixed=["a"])})
    shown = "−0.600 [−0.650, −0.550] †"
    assert section(pages["FINDINGS.md"], "First").startswith(
        f"1. **What of one?** This collapses in 4 of 5 runs ({shown}, 5 seeds against grpo). It "
        "sees less."
    )
    rows = section(pages["FINDINGS.md"], "Decided").splitlines()[-2:]
    assert [row.split(" | ")[-2] for row in rows] == ["collapse", "worse"]


def test_claims_are_corrected_over_the_page(written):
    """Of ten claims the only small p-value must be below 0.005; of two, below 0.025."""

    def two_part(verdict: str, p: float) -> dict[str, Any]:
        found = arm(verdict, -0.1, p_difference=p, p_equivalent=1.0)
        found["entry"]["successes"] = [[20, 32], [63, 64]]
        return found

    def page(others: int) -> str:
        arms = {f"open{n}": two_part("not decided", 0.9) for n in range(others)}
        arms = {"a": two_part("fails more often", 0.01), **arms}
        rows = [asked(arms={name: name for name in arms})]
        return written(rows, {"one": report(arms)})["FINDINGS.md"]

    line = "| −0.100 [−0.150, −0.050]{} | 20 of 32, 63 of 64 | fails more often |"
    assert line.format("") in page(0)
    assert line.format(" ‡") in page(4)


@pytest.mark.parametrize(
    "row, is_main",
    [({}, True), ({"aside": True}, False), ({"aside": True, "overturned_by": "it"}, True)],
)
def test_a_study_in_two_parts_is_main_unless_it_follows_another_up(tmp_path, row, is_main):
    found = arm("worse")
    found["entry"] |= {"p_equivalent": 1.0, "successes": [[8, 8], [8, 8]]}
    write_json(tmp_path / "one" / "report.json", report({"a": found}))
    assert find([Question(**asked(arms={"a": "it"}, **row))], tmp_path)[0].is_main == is_main


def test_before_the_first_look_the_means_of_all_runs_are_compared():
    entry = {"difference": None, "low": None, "high": None}
    against = dict.fromkeys("ab", {"against": "plain"})
    details = {"means": {"a": 0.5, "plain": 0.4}, "arms": against}
    early = {"arms": {"a": entry, "b": entry}, "details": details}
    assert so_far(early, "a") == entry | {"difference": pytest.approx(0.1)}
    assert so_far(early, "b") is None
    decided = {"arms": {"a": entry | {"difference": 0.3}}, "details": details}
    assert so_far(decided, "a")["difference"] == 0.3


def test_cells_of_factorial_studies_stand_side_by_side(written):
    def world(*means: float) -> dict[str, Any]:
        found = report({"b": arm("better")}, [effect(["f"], ["a", "b"], 0.1, "better", "f.")])
        found["details"]["means"] = dict(zip("ab", means, strict=True))
        return found

    reports = {"one": world(0.2, 0.5), "two": world(0.4, 0.3)}
    row = asked(part="carry", worlds={"one": "small", "two": "large", "three": "other"})
    page = written([row | {"cells": {"b for a": ["b", "a"]}}], reports)["FINDINGS.md"]
    worlds = "[small](one/REPORT.md) | [large](two/REPORT.md) | other"
    assert section(page, "Other bases and worlds").splitlines() == [
        f"| What of one? | {worlds} |", "| --- | --- | --- | --- |",
        "| b for a | +0.300 (5) | −0.100 (5) | – |",
    ]  # fmt: skip
    assert section(page, "Not run yet") == "- What of one? other (three)"
    with pytest.raises(ConfigurationError, match="'x' has b, c; name two cells of one, such as a"):
        written([row | {"cells": {"x": ["b", "c"]}}], reports)


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


def test_an_x_ray_at_two_points_and_its_scatter(written, tmp_path):
    at_drift = [("inert", 1.0, 0), ("reweights length, noisier", 0.8, 8)]
    rescales = [("only rescales", 1.0, 0)]
    xrays = {"a": at_drift, "b": [("other direction", 0.1, 0)], "c": rescales, "d": rescales}
    write_xray(tmp_path / "one", xrays, {"b": "x"}, steps={"c": 4})
    arms = {"a": arm("worse", -0.3), "b": arm("better"), "c": arm("worse"), "d": arm("equivalent")}
    pages = written([asked(arms={name: name for name in arms})], {"one": report(arms)})
    text = section(pages["FINDINGS.md"], "X-ray and outcomes")
    assert "| reweights | 1 | 0 | 0 |" in text and "| only rescales | 0 | 1 | 0 |" in text
    assert "| another number of optimizer steps per batch | 1 | 0 | 0 |" in text
    assert "other direction" not in text  # the X-ray compares b with x, the runs with grpo
    assert "over 3 arms: too few" in text
    assert "![distance in the X-ray against that in the outcome](xray.png)" in text
    assert main([str(tmp_path / "findings.yaml")]) == 0
    assert (tmp_path / "xray.png").read_bytes().startswith(b"\x89PNG")


def write_xray(study, arms, against=None, steps=None):
    """An X-ray of arms: verdict, cosine and drift at each point; steps if more than one."""
    points = {
        name: [
            {"checkpoint": "base", "drift": drift, "verdict": verdict, "cosine_mean": cosine,
             "optimizer_steps": (steps or {}).get(name, 1)}
            for verdict, cosine, drift in each
        ]
        for name, each in {"grpo": [("reference", 1.0, 0)], **arms}.items()
    }  # fmt: skip
    found = {"arms": points, "against": dict.fromkeys(arms, "grpo") | (against or {})}
    write_json(study / "xray.json", found)


def test_a_study_without_runs_is_not_run_yet(written):
    pages = written([asked(arms={"a": "it"}), asked("two", part="papers")], {})
    assert section(pages["FINDINGS.md"], "Not run yet") == (
        "- What of one? (one)\n- What of two? (two)"
    )
    assert "## " not in pages["FINDINGS.md"].partition("## Not run yet")[0]


def test_arms_and_factors_whose_runs_are_yet_to_come_are_not_run_yet(written):
    """Studies share runs, so that one may have a few of its runs before it is begun."""
    none, some = arm("undecided", None, pairs=0), arm("too few seeds", None, pairs=1)
    partial = effect(["baseline"], ["group_mean", "none"], 0.1, "too few seeds", None)
    found = {"one": report({"a": none}), "two": report({"a": none, "b": some})}
    found["three"] = report({"a cell": none, "another": some}, [partial])
    words = {"a": "the one", "b": "the other"}
    rows = [asked(arms={"a": "it"}), asked("two", arms=words), asked("three", part="factors")]
    page = written(rows, found)["FINDINGS.md"]
    assert section(page, "Not run yet") == (
        "- What of one? (one)\n- What of two? the one (two)\n- What of three? (three)"
    )
    words = "- [What of two?](two/REPORT.md) the other – (1 pair)."
    assert section(page, "Not decided") == words and "What depends on what" not in page


def test_the_readme_is_rewritten_once_four_questions_have_answers(written):
    rows = [asked(n, arms={"a": n}, readme=True) for n in ("one", "two", "three", "five")]
    rows.append(asked("four", part="factors", readme=True))
    found = {n: report({"a": arm("better")}) for n in ("one", "two")}
    words = "A matters more with b: it is −0.5 there. Difference of differences −0.4."
    found["four"] = report({}, [effect(["a", "b"], [["0", "1"]] * 2, -0.4, "worse", words)])
    assert "TOP.md" not in written(rows, found)
    text = written(rows, {**found, "five": report({"a": arm("worse")})})["TOP.md"]
    assert "old rows" not in text and text.endswith("\n## Switches\n\nlast\n")
    row = f"| [What of two?](recipes/studies/two/REPORT.md) | two is better, {SHOWN} (5 pairs) |"
    assert row in text and text.count("REPORT.md") == 4
    assert "| A matters more with b: it is −0.5 there |" in text
    assert "![curves of the study one](recipes/studies/one/curves.png)" in text


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"study": "one", "part": "question"}, "has no `question`"),
        (asked("gone"), "study 'gone' of 'What of gone?' does not exist"),
        (asked(part="answer"), "it takes one of"),
        (asked(armz={}), "unknown key 'armz'"),
        (asked(why={"perhaps": "so"}), "it takes one of"),
        (asked(at_1_5b={"answer": "worse"}), "unknown key 'at_1_5b'"),
        (asked(part="carry"), "worlds belong to part 'carry'"),
    ],
)
def test_wrong_lists_are_refused(tmp_path, row, complaint):
    study_in(tmp_path / "one")
    write_json(tmp_path / "findings.yaml", {"rows": [row]})
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        read_findings(tmp_path / "findings.yaml")


def test_the_committed_pages_are_those_of_the_committed_reports():
    *_, pages = pages_of(LIST, SHIPPED.parent / "README.md")
    assert {"FINDINGS.md", "ANSWERS.md"} <= {path.name for path in pages}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run trl-ablate findings: {path} differs"
    if "(findings.png)" in pages[SHIPPED / "studies" / "FINDINGS.md"]:
        assert (SHIPPED / "studies" / "findings.png").is_file()


def test_the_shipped_list_names_arms_of_its_studies_with_expectations():
    rows = read_findings(LIST)
    for row in rows:
        study = load_study(Path(LIST.parent / row.study / "study.yaml"))
        names = {found.name.partition("--")[0] for found in study.arms}  # tuned: one at each value
        assert set(row.arms) <= names
        if row.part in ("question", "control"):
            assert set(row.arms) <= set(study.expect), row.study
    files = [*LIST.parent.glob("chains*/study.yaml"), *LIST.parent.glob("gym_*/study.yaml")]
    asked = {study for row in rows for study in row.studies}
    assert {path.parent.name for path in files} == asked


def test_planted_reports_have_the_shape_of_real_ones(tmp_path):
    arms = {"grpo": {"top": 0.8}, "weak": {"top": 0.4}, "broken": {"top": 0.8, "collapse": 8}}
    plan, store = write_study(tmp_path / "runs", arms)
    report_study(plan, store, study_in(tmp_path / "one"), tmp_path / "one")
    real = json.loads((tmp_path / "one" / "report.json").read_text())
    planted = report({"weak": arm("worse")})
    assert planted.keys() == real.keys() and planted["details"].keys() == real["details"].keys()
    for part in (planted, planted["details"]), (real, real["details"]):
        assert part[0]["arms"]["weak"].keys() == planted["arms"]["weak"].keys()
        assert part[1]["arms"]["weak"].keys() == planted["details"]["arms"]["weak"].keys()
    words = {"weak": "it", "broken": "that"}
    found = find([Question("Is it?", "question", "one", words)], tmp_path)
    text = (tmp_path / "one" / "REPORT.md").read_text(encoding="utf-8").replace("\\", "")
    assert f"weak is worse than grpo ({found[0].arms[0].difference}" in text
    assert [one.kind for one in found[0].arms] == ["worse", "collapse"]
    assert draw_answers(found[0].arms) is not None


@pytest.mark.slow
def test_real_factorial_and_tuned_reports_are_read(tmp_path):
    factors = {"scale": ["group", "none"], "norm": ["mean", "constant"]}
    plans = {
        "one": (factorial_plan(factors), lambda plan, runs: write_factorial(runs, plan, _top)),
        "two": (tuned_plan({"grpo": [0.4, 0.8], "b": [0.5, 0.6]}), _write_tuned),
    }
    for name, (plan, write) in plans.items():
        file = study_in(tmp_path / name)
        report_study(plan, write(plan, tmp_path / f"runs_{name}"), file, file.parent)
    asked_of = [Question("Q?", "factors", "one"), Question("Q?", "papers", "two")]
    one, two = find(asked_of, tmp_path)
    assert one.effects and all(one.effects) and one.effects[0].startswith("scale: ")
    assert [(one.arm, one.against, one.kind) for one in two.arms] == [("b", "grpo", "worse")]


def _top(cell: dict[str, Any]) -> float:
    return 0.8 if cell["scale"] == "group" else 0.5


def _write_tuned(plan, folder: Path) -> RunStore:
    store = RunStore(folder)
    for number, each in enumerate(plan.arms):
        for run in each.runs:
            rows = learning_rows(1000 * number + run.seed, each.declared["top"])
            write_run(store, run, each.declared, rows)
    return store


STUDIES = REPOSITORY / "recipes" / "studies"
PREDICTIONS = yaml.safe_load((STUDIES / FILE).read_text(encoding="utf-8"))["rows"]
RUNS = """group,arm,seed,step,score
A,plain,0,0,0.1
A,plain,0,9,0.5
A,plain,1,9,0.4
A,new,0,9,0.1
A,new,1,9,0.7
B,plain,0,9,0.9
B,new,0,9,0.1
"""


@pytest.mark.parametrize("row", PREDICTIONS, ids=lambda row: row["words"])
def test_what_is_foretold_follows_from_the_study(row):
    assert foretold(read_report(STUDIES / row["study"]) or {}, row["arm"]) == row.get("predicts")


def test_a_comparison_by_hand(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "runs.csv").write_text(RUNS)
    both = [["runs.csv", group, "new", "plain"] for group in ("A", "B")]
    rows = [
        {"study": name, "arm": "new", "words": name, "published": both}
        for name in ("worse", "collapsed", "equal")
    ]
    (tmp_path / FILE).write_text(yaml.safe_dump({"rows": rows}))
    kinds = {"worse": ("worse", 0), "collapsed": ("worse", 2), "equal": ("equivalent", 0)}
    for name, (verdict, collapsed) in kinds.items():
        entry = {"verdict": verdict, "collapsed": [collapsed, 3]}
        write_json(tmp_path / name / "report.json", {"arms": {"new": entry}})
    lower, fails, nothing = contrasts(tmp_path)
    assert (lower.predicts, fails.predicts, nothing.predicts) == ("lower", "fails", None)
    differences = {"runs A": (pytest.approx(-0.05), 2), "runs B": (pytest.approx(-0.8), 1)}
    assert lower.published == differences
    assert nothing.published == lower.published and nothing.right == {}
    # in A: means 0.4 and 0.45; a run fails below the median of 0.3 and 0.2, which one of new does
    assert [*lower.right.values()] == [True, True] and [*fails.right.values()] == [True, True]
    assert right_share([lower]).startswith("2 of 2 contrasts came as foretold: 100 %")
    assert contrasts(tmp_path / "nowhere") == []
    (tmp_path / "published" / "runs.csv").unlink()  # as in a wheel
    assert contrasts(tmp_path) == []
