"""Reports: what they compute from runs, what they write, and what they must not need."""

import base64
import csv
import html
import io
import math
import re
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from scipy import stats

from tests.support.synthetic_study import (
    METRIC,
    flat_run,
    learning_rows,
    make_plan,
    write_run,
    write_study,
)
from trl_ablate import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.json_files import append_jsonl, read_object
from trl_ablate.study.report import pictures
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.costs import time
from trl_ablate.study.report.curves import Run, Series, area, collapse_step, planned_runs
from trl_ablate.study.report.document import Code
from trl_ablate.study.report.foreign_runs import read_curves
from trl_ablate.study.report.making import report_curves, report_study
from trl_ablate.study.report.pictures import line_of, spread
from trl_ablate.study.report.sections import commands, different_starts
from trl_ablate.study.report.stats import Comparison, Interval, t_interval
from trl_ablate.study.report.verdicts import disagreement, pairs_to_see
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore
from trl_ablate.study.verdict import Verdict


def curve(*values: float) -> Series:
    return Series([float(step) for step in range(len(values))], list(values))


def test_area_by_hand():
    # trapezoids (0 + 1)/2 + (1 + 1)/2 = 1.5 over a length of 2
    assert area(curve(0.0, 1.0, 1.0)) == pytest.approx(0.75)
    # and the last value held for 2 steps more: 3.5 over 4
    assert area(curve(0.0, 1.0, 1.0), until=4.0) == pytest.approx(0.875)
    assert area(Series([3.0], [0.4])) == 0.4


@pytest.mark.parametrize(
    ("values", "stderr", "collapsed_at"),
    [
        ((0.05, 0.5, 0.6, 0.1, 0.1), 0, 3.0),
        ((0.05, 0.5, 0.6, 0.4, 0.4), 0, None),  # lost less than half
        ((0.05, 0.5, 0.6, 0.6, 0.1), 0, None),  # one bad evaluation
        ((0.1, 0.7, 0.7, 0.0), 0.02, 3.0),  # which is enough if its error is known
        ((0.05, 0.6, 0.1, 0.6, 0.6), 0, None),  # recovered
        ((0.04, 0.03, 0.04, 0.03, 0.03), 0, None),  # never learned, never lost
        ((0.030, 0.0, 0.0, 0.0), 0, 1.0),  # lost its starting value
        ((0.05, 0.02, 0.02, 0.02), 0, 1.0),
        ((0.05, 0.02, 0.02, 0.02), 0.011, None),  # no more than noise
        ((0.6, 0.1), 0, None),  # two evaluations are too few
        ((-0.9, -0.5, -0.25, -0.29, -0.3), 0, None),  # no value is half of a best one below 0
        ((0.5,), 0, None),
    ],
)
def test_what_a_collapse_is(values, stderr, collapsed_at):
    assert collapse_step(curve(*values), stderr) == collapsed_at


def test_a_study_that_decides_on_a_group_reads_its_standard_error(tmp_path):
    plan = replace(make_plan({"a": {"x": 1}}, [0]), primary_metric="eval_reward/level=3")
    store, (run,) = RunStore(tmp_path), plan.arms[0].runs
    rows = ({"grpo_step": step, "seconds": step, "eval_reward/level=3": value,
             "eval_reward_stderr/level=3": 0.02}
            for step, value in enumerate((0.1, 0.7, 0.7, 0.0)))  # fmt: skip
    write_run(store, run, {"x": 1}, rows)
    (found,) = planned_runs(plan, store)
    summary = found.summary(plan.primary_metric)
    assert summary is not None and summary.collapsed_at == 3.0  # without it: None


def test_runs_without_an_outcome_stay_and_have_no_value():
    runs = [flat_run("a", seed, [0.1, 0.7]) for seed in range(3)]
    runs += [flat_run("b", seed, [0.1, 0.2], status) for seed, status in
             enumerate(("finished", "failed", "to do"))]  # fmt: skip
    arm = analyse(runs, METRIC).arms[1]
    assert arm.values("final") == [0.2, None, None]
    assert arm.intervals["final"].n == 1
    assert arm.outcome() == "1 finished, 1 failed, 1 to do"
    assert analyse(runs, METRIC).decisive["b"].verdict == "too few seeds"


@pytest.mark.parametrize(
    ("evaluated", "diverged_at", "best", "final"),
    [
        ({0: 0.1, 4: 0.7, 8: 0.8}, 9.0, 0.8, 0.0),  # not 0.8, before the weights became NaN
        ({0: 0.5, 10: 0.5, 20: 0.5}, 20.0, 0.5, 0.0),  # it was evaluated once more
        ({0: -0.9, 1: -0.4}, 2.0, -0.4, -0.9),  # below 0 it ends lowest
        ({}, 9.0, 0.0, 0.0),
    ],
)
def test_a_run_that_diverged_has_collapsed(tmp_path, evaluated, diverged_at, best, final):
    plan, store = make_plan({"a": {}}, [0]), RunStore(tmp_path)
    rows = [{"grpo_step": step, "seconds": step, METRIC: of} for step, of in evaluated.items()]
    directory = write_run(store, plan.arms[0].runs[0], {}, iter(rows))
    directory.update(status="stopped", reason="the training diverged", diverged_at=diverged_at)
    if not evaluated:
        directory.metrics_file.unlink()
    (run,) = planned_runs(plan, store)
    summary = run.summary(METRIC)
    assert run.counts and summary is not None
    found = (summary.best, summary.final, summary.last_third, summary.collapsed_at)
    assert found == (best, final, pytest.approx(final), diverged_at)


def test_below_zero_no_run_falls_behind():
    runs = [flat_run("a", seed, [-0.9, final]) for seed, final in enumerate((-0.2, -0.2, -0.3))]
    assert analyse(runs, METRIC).arms[0].fell_behind == 0


def reported(plan, store, folder: Path) -> tuple[str, str]:
    """The report as Markdown, without backslashes, and as a page."""
    report_study(plan, store, folder / "study.yaml", folder / "out")
    return written(folder / "out")


def written(out: Path) -> tuple[str, str]:
    markdown, page = ((out / name).read_text("utf-8") for name in ("REPORT.md", "report.html"))
    return markdown.replace("\\", ""), html.unescape(page)


def table_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


ARMS = {
    "grpo": {"top": 0.8}, "reused": {"top": 0.4}, "dapo": {"top": 0.7}, "weak": {"top": 0.3},
    "alike": {"top": 0.801}, "mixed": {"top": 0.82}, "flat": {"top": 0.81},
    "broken": {"top": 0.83, "collapse": 6}, "ill": {"top": 0.5},
}  # fmt: skip
ONE_SEED = {("mixed", 0): {"collapse": 8}, ("flat", 1): {"top": 0.1}}
EXPECT = {"weak": "better", "alike": "equal", "broken": "collapse", "grpo": "collapse"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of a study in which all happens that a report mentions: its folder, Markdown and page."""
    folder = tmp_path_factory.mktemp("whole")
    plan, store = make_plan(ARMS), RunStore(folder / "runs")
    plan = replace(plan, against={"dapo": "reused"}, notes=["One rate for all."], expect=EXPECT)
    for number, arm in enumerate(plan.arms[:-1]):
        for run in arm.runs:
            learned = ARMS[arm.name] | ONE_SEED.get((arm.name, run.seed), {})
            rows = learning_rows(1000 * number + run.seed, **learned)
            write_run(store, run, ARMS[arm.name], rows).update(profile="miniature")
    failed, running, _ = plan.arms[-1].runs
    write_run(store, failed, ARMS["ill"], iter(()), status="failed", reason="it | died")
    write_run(store, running, ARMS["ill"], learning_rows(9, 0.5), status="running")
    first, second, _ = (store.directory(run.id).path / "rollouts" for run in plan.arms[0].runs)
    said = {"prompt": "a" * 400 + "b" * 400, "response": "c", "reward": 1.0}
    for rollouts in (first, second):
        rollouts.mkdir()
        append_jsonl(rollouts / "step_000020.jsonl", said)
    (first / "step_000020.jsonl").write_text("{\n")  # damaged: the second run's are shown
    other = store.directory(plan.arms[3].runs[0].id)
    other.update(profile="h100", git={"commit": "fedcba9876543210", "diff": "+1"})
    return folder / "out", *reported(plan, store, folder)


MISLEADING = "the interval assumes one bell-shaped population and is misleading here"


@pytest.mark.parametrize(
    "words",
    [
        "Does it work?", "0.13 M parameter model", "Yes. One seed each.", "One rate for all.",
        "dapo is better than reused", "reused is worse than grpo", "ill: too few seeds",
        "difference from grpo (or the arm after", "failed: it | died", "in all 250 settings",
        "trl-ablate study run", "1.16.0", "3 of 27 runs have no outcome", "finished, all collapsed",
        f"mixed: of 3 seeds 1 collapsed: {MISLEADING}",
        f"flat: of 3 seeds 1 ended below half of the arm's median: {MISLEADING}",
        "several profiles, which are different treatments (dtype, optimizer",
        "grpo: 3 of miniature; reused: 3 of miniature; dapo: 3 of miniature; weak: 1 of h100, 2 of",
        "0123456789 (25 runs), fedcba9876 with uncommitted changes (1 runs)",
        "grpo, step 000020, highest reward: 1.0", "[response]\nc",
        f"{'a' * 350}\n[... 100 characters ...]\n{'b' * 350}\n",
    ],
)  # fmt: skip
def test_a_report_and_its_page_say(whole, words):
    _, text, page = whole
    assert words in text and words in page


def test_parts_of_a_report_in_order(whole):
    out, text, _ = whole
    order = ("Does it work?", "## Answer", "dapo is better", "(differences.png)", "(curves.png)",
             "## Arms, best first", "## Outcomes", "## What differs")  # fmt: skip
    assert [text.index(part) for part in order] == sorted(map(text.index, order))
    assert "than grpo (−0.0" not in text and "dapo is worse" not in text
    assert text.count(MISLEADING) == 2  # in `broken` all collapse: that is one population
    marked = re.findall(r"^\| (\w+) \|.*†", text, re.MULTILINE)
    assert sorted(marked) == ["flat", "flat", "mixed", "mixed"]  # as arms, and as comparisons
    for row in ("weak | better | worse | no", "alike | equal | not distinguishable | open",
                "broken | collapse | collapse (3 of 3 runs) | yes",
                "grpo | collapse | 0 of 3 runs collapsed | no"):  # fmt: skip
        assert f"| {row} |" in text
    assert {file.name for file in out.iterdir()} == {
        "REPORT.md", "curves.png", "differences.png", "report.html", "report.json", "runs.csv",
    }  # fmt: skip


def test_what_a_report_says_only_where_it_holds(tmp_path):
    plan, store = write_study(tmp_path / "runs", {name: ARMS[name] for name in ("grpo", "dapo")})
    for run_id in plan.runs():
        store.directory(run_id).update(profile="miniature")
    text = reported(plan, store, tmp_path)[0]
    assert "dapo is worse than grpo" in text
    assert "several profiles" not in text and "Expected and found" not in text


def test_the_same_numbers_in_all_files(whole):
    """What report.json has, the Markdown and the page show, rounded; and nothing else differs
    between the two."""
    out, text, page = whole
    record = read_object(out / "report.json")
    for name in ("weak", "broken", "alike"):
        found = record["arms"][name]
        numbers = [f"{found[key]:+.3f}".replace("-", "−") for key in ("difference", "low", "high")]
        shown = f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"
        joint = "from" if name == "alike" else "than"
        assert f"{name} is {found['verdict']} {joint} grpo ({shown}" in text and shown in page
        assert f"| {name} | {found['collapsed'][0]} of {found['collapsed'][1]} |" in text
    for found in record["curves"].values():
        assert f"| {found['A']:.3f} ±" in text and f">{found['A']:.3f} ±" in page
    means = re.findall(r"^\| \w+ \| \d finished[^|]* \| ([\d.]+)", text, re.MULTILINE)
    assert len(means) == 8 and means == sorted(means, reverse=True)
    rows = table_of(out / "runs.csv")
    assert {row["arm"] for row in rows if row["collapsed_at"]} == {"broken", "mixed"}
    assert [row["status"] for row in rows[-3:]] == ["failed", "interrupted", "to do"]
    assert len(rows) == 27 and rows[0]["last_step"] == "20"
    page = re.sub(r"base64,[^\"]*|<style>.*?</style>", "", page, flags=re.DOTALL)
    in_text, on_page = (re.findall(r"[+−]?\d+\.\d{3}", of.partition("What differs")[0])
                        for of in (text, page))  # fmt: skip
    assert in_text == on_page and len(in_text) > 40


def test_the_page_needs_nothing_else(whole):
    out, _, page = whole
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    pictures = re.findall(r'base64,([^"]+)"', page)
    assert len(pictures) == 2
    for picture in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(picture))).width > 500
    assert sum(path.stat().st_size for path in out.iterdir()) < 500_000


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("judge", "looks"), [("paired", ()), ("paired", (3, 8)), ("two_part", (4, 8))]
)
def test_two_names_of_the_same_runs_are_no_comparison(tmp_path, judge, looks):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.8}, "c": {"top": 0.4}}
    plan, store = (
        make_plan(arms, range(8), looks=looks, equivalence_margin=0.05),
        RunStore(tmp_path),
    )
    plan, alone = replace(plan, judge=judge), replace(plan, judge=judge, arms=plan.arms[::2])
    for number, arm in enumerate(alone.arms):
        for run in arm.runs:
            rows = learning_rows(100 * number + run.seed, arm.values["top"])
            write_run(store, run, arm.declared, rows)
    reported(alone, store, tmp_path)
    without = read_object(tmp_path / "out" / "report.json")["arms"]
    assert "b has the settings of a: same runs." in reported(plan, store, tmp_path)[0]
    found = read_object(tmp_path / "out" / "report.json")["arms"]
    assert found["c"] == without["c"]  # the whole level
    assert (found["b"]["verdict"], found["b"]["pairs"]) == ("not estimable", 0)
    assert found["b"]["p_difference"] is found["b"]["p_equivalent"] is found["b"]["low"] is None
    assert StudyRuns(plan, store).undecided == []


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (SHIPPED / "grpo.yaml", "recipes/grpo.yaml"),
        (SHIPPED / "studies" / "aa" / "study.yaml", "recipes/studies/aa/study.yaml"),
        (Path("/another/checkout/recipes/grpo.yaml"), "recipes/grpo.yaml"),
        (Path("mine/own.yaml"), "mine/own.yaml"),
        (Path("/elsewhere/own.yaml"), "own.yaml"),
        (Path("/elsewhere/recipes/own.yaml"), "own.yaml"),
    ],
)
def test_commands_name_shipped_files_as_a_checkout_has_them(file, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = make_plan({"grpo": {"top": 0.8}})
    runs = tuple(replace(run, words=(str(file), "--seed", "0")) for run in plan.arms[0].runs)
    code = commands(replace(plan, arms=(replace(plan.arms[0], runs=runs),)), file).blocks
    texts = [block.text for block in code if isinstance(block, Code)]
    assert texts[0].splitlines()[1] == f"trl-ablate study run {shown}"
    assert texts[1] == f"trl-ablate train {shown} --seed 0"


def test_a_report_of_nothing_says_so(tmp_path):
    plan, store = make_plan({"grpo": {"top": 0.8}}), RunStore(tmp_path)
    with pytest.raises(ConfigurationError, match="no run has logged eval_reward yet"):
        report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")


def test_published_curves_with_seeds_in_their_names(tmp_path):
    lines = ["run_name,metric,step,value", "a-seed0,train/grad_norm,1,nan"]
    for arm, level in (("a", 0.5), ("b", 0.7)):
        for seed, s in product(range(3), range(4)):
            value = level + 0.01 * seed + 0.001 * s * seed
            lines.append(f"{arm}-seed{seed},eval/reward,{s},{value}")
    path = tmp_path / "curves.csv"
    path.write_text("\n".join(lines))
    report_curves(path, tmp_path / "out", reference=read_curves(path))
    text = written(tmp_path / "out")[0]
    assert "b is better than a" in text and "Published curves" in text
    assert len(report_curves(path, tmp_path / "alone")) == 6
    height = {out: Image.open(tmp_path / out / "curves.png").height for out in ("out", "alone")}
    assert height["out"] > height["alone"]


def curves_with_seeds(path: Path, arms: dict[str, dict[int, float]]) -> Path:
    """Runs named by letters, so that only the columns say whose they are."""
    lines = ["run_name,arm,seed,metric,step,value"]
    for arm, finals in arms.items():
        for seed, final in finals.items():
            lines += [f"{arm[0]}{chr(97 + seed)},{arm},{seed},eval/reward,{step},{final * step / 4}"
                      for step in range(5)]  # fmt: skip
    path.write_text("\n".join(lines))
    return path


def test_curves_with_arms_and_seeds_in_their_columns(tmp_path):
    """The seeds pair the runs, in whatever order they stand; a missing one has no pair."""
    arms = {
        "plain": {2: 0.52, 0: 0.50, 1: 0.61, 3: 0.40},
        "tuned": {0: 0.60, 1: 0.72, 3: 0.50, 4: 0.90, 2: 0.63},
    }
    path = curves_with_seeds(tmp_path / "mine.csv", arms)
    report_curves(path, tmp_path / "out")
    record = read_object(tmp_path / "out" / "report.json")
    found = record["arms"]["tuned"]
    assert record["reference"] == "plain" and found["verdict"] == "better"
    assert found["pairs"] == 4 and found["collapsed"] == [0, 5]
    assert found["difference"] == pytest.approx((0.10 + 0.11 + 0.11 + 0.10) / 4)
    shown = "+0.105 [+0.096, +0.114]"
    assert found["low"] == pytest.approx(0.096, abs=5e-4)
    text, page = written(tmp_path / "out")
    assert text.count(shown) >= 2 and page.count(shown) == text.count(shown)
    rows = table_of(tmp_path / "out" / "runs.csv")
    assert [row["status"] for row in rows if row["arm"] == "plain"][4] == "missing"


def test_an_arm_is_no_formula_of_a_spreadsheet(tmp_path):
    arms = {"=1+1": {0: 0.5}, "plain": {0: 0.6}}
    report_curves(curves_with_seeds(tmp_path / "mine.csv", arms), tmp_path / "out")
    rows = table_of(tmp_path / "out" / "runs.csv")
    assert [row["arm"] for row in rows] == ["'=1+1", "plain"]
    assert rows[0]["run_name"] == "'=1+1-seed0"


def test_bands_are_drawn_where_they_do_not_hide_each_other(monkeypatch):
    monkeypatch.setattr(pictures, "png_of", lambda figure: figure)

    def bands(arms: int) -> int:
        runs = [flat_run(f"arm {n}", seed, [0.1, 0.2]) for n in range(arms) for seed in (0, 1)]
        return len(pictures.draw_curves(analyse(runs, METRIC)).axes[0].collections)

    assert [bands(arms) for arms in (2, 8, 9)] == [2, 8, 0]


def test_runs_that_began_with_different_weights_are_named():
    plan = make_plan({"grpo": {"start": "base"}, "a": {"start": "base"}, "b": {"start": "sft"}})
    began = [("grpo", "one"), ("grpo", "one"), ("a", "two"), ("b", "three"), ("a", None)]
    runs = [replace(flat_run(arm, 0, [0.5]), record={"start_weights": of}) for arm, of in began]
    (sentence,) = different_starts(plan, runs)
    assert "(start base) began with different weights: one (2 runs), two (1 runs);" in sentence
    assert different_starts(plan, runs[:2]) == []


def test_a_difference_that_one_of_two_tests_finds():
    found = Comparison("a", Interval(6, 0.1), None, None, Verdict.UNDECIDED, 0.2, exact_p=0.0625,
                       exact_disagrees=True)  # fmt: skip
    assert disagreement(replace(found, exact_disagrees=False)) is None
    assert "and the exact sign-flip test does not (p = 0.062)" in (disagreement(found) or "")
    assert "too few for an exact test" in (disagreement(replace(found, exact_p=None)) or "")


def test_pairs_whose_interval_would_leave_out_0():
    seen = [0.02, 0.1, 0.06]
    pairs = pairs_to_see(t_interval(seen))
    mean, sd = statistics.fmean(seen), statistics.stdev(seen)
    assert pairs == 5  # by the t of five pairs, not of three
    for n, is_enough in ((4, False), (5, True)):
        assert (stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) < mean) == is_enough
    assert pairs_to_see(t_interval([0.05, 0.06, 0.07])) is None  # it leaves out 0 already
    assert pairs_to_see(t_interval([-1.0, 1.0, 0.001])) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run_name,metric,step,value\na,eval/reward,zero,1\n", "line 2"),
        (None, "do not exist; name a CSV file"),
        ("group,arm,seed,eval_reward\nx,a,0,1\ny,a,0,1\n", "seed 0 in the groups 'x' and 'y'"),
        ("run,eval_reward\na,1\na-seed1,1\nb-seed1,1\n", "a run of arm 'a' has no seed"),
        (
            "run_name,metric,step,value\na,train/loss,0,1\n",
            "no metric 'eval_reward'; they have loss",
        ),
    ],
)
def test_curves_that_are_none(tmp_path, text, complaint):
    path = tmp_path / "curves.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        report_curves(path, tmp_path / "out")


def test_lines_hold_what_ended_early():
    runs = [flat_run("a", 0, [0.0, 0.4, 0.8, 0.8]), flat_run("a", 1, [0.0, 0.4], "stopped")]
    line = line_of(runs, METRIC)
    assert line is not None and line.runs == 2
    assert list(line.mean) == pytest.approx([0.0, 0.4, 0.6, 0.6])
    assert (line.low[-1], line.high[-1]) == (0.4, 0.8)
    assert line_of(runs, METRIC, cost=time) is None  # the time is unknown
    assert line_of([Run("a", 0, "to do")], METRIC) is None


def test_labels_keep_their_distance():
    placed = spread([0.50, 0.51, 0.52, 0.9], 0.1, 0.0, 1.0)
    assert placed == pytest.approx([0.41, 0.51, 0.61, 0.9])
    assert spread([0.0, 0.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1])
    assert spread([1.0, 1.0], 0.1, 0.0, 1.0) == pytest.approx([0.9, 1.0])
    assert spread([], 0.1, 0.0, 1.0) == []
