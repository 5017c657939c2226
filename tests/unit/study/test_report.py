"""Reports: what they compute from runs, what they write, and what they must not need."""

import base64
import csv
import html
import io
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from tests.support.synthetic_study import METRIC, flat_run, learning_rows, make_plan, write_run
from trl_ablate import ConfigurationError
from trl_ablate.metrics import GRAD_NORM
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.json_files import append_jsonl, read_object
from trl_ablate.run.picture import PALETTE, png_of
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.costs import time
from trl_ablate.study.report.curves import Run, Series, area, collapse_step, planned_runs
from trl_ablate.study.report.document import Document, Items
from trl_ablate.study.report.foreign_runs import read_curves
from trl_ablate.study.report.making import numbers_of, report_curves, report_study, write_files
from trl_ablate.study.report.numbers import p_words
from trl_ablate.study.report.outcomes import (
    improvement_interval,
    interquartile_mean,
    middle_interval,
    wins,
)
from trl_ablate.study.report.pictures import draw_curves, line_of, spread
from trl_ablate.study.report.run_tables import runs_table
from trl_ablate.study.report.sections import different_starts, shortest
from trl_ablate.study.report.stats import t_interval
from trl_ablate.study.report.verdicts import (
    answer,
    caveats,
    found_of,
    pairs_to_see,
    what_would_change,
)
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore


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
        ((0.05, 0.02, 0.02, 0.02), 0, 1.0),  # lost its starting value
        ((0.05, 0.02, 0.02, 0.02), 0.011, None),  # no more than noise
        ((0.6, 0.1), 0, None),  # two evaluations are too few
        ((-0.9, -0.5, -0.25, -0.29, -0.3), 0, None),  # no value is half of a best one below 0
    ],
)
def test_what_a_collapse_is(values, stderr, collapsed_at):
    assert collapse_step(curve(*values), stderr) == collapsed_at


def test_a_study_that_decides_on_a_group_reads_its_standard_error(tmp_path):
    plan = replace(make_plan({"a": {}}, [0]), primary_metric="eval_reward/level=3")
    store = RunStore(tmp_path)
    rows = [
        {"grpo_step": step, "seconds": step, "eval_reward/level=3": value,
         "eval_reward_stderr/level=3": 0.02}
        for step, value in enumerate((0.1, 0.7, 0.7, 0.0))
    ]  # fmt: skip
    write_run(store, plan.arms[0].runs[0], {}, iter(rows))
    (found,) = planned_runs(plan, store)
    assert found.summary(plan.primary_metric).collapsed_at == 3.0  # without it: None


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


def test_runs_without_an_outcome_stay_and_have_no_value():
    runs = [flat_run("a", seed, [-0.9, final]) for seed, final in enumerate((-0.2, -0.2, -0.3))]
    runs += [flat_run("b", seed, [0.1, 0.2], status) for seed, status in
             enumerate(("finished", "failed", "to do"))]  # fmt: skip
    analysis = analyse(runs, METRIC)
    below_zero, arm = analysis.arms
    assert arm.values("final") == [0.2, None, None] and arm.intervals["final"].n == 1
    assert arm.outcome() == "1 finished, 1 failed, 1 to do"
    assert analysis.decisive["b"].verdict == "too few seeds"
    assert below_zero.fell_behind == 0


def test_the_table_of_runs_names_every_seed():
    """Once: with its end, where it collapsed, or why it has not finished."""
    ends = {0: "finished", 1: "finished", 2: "failed", 3: "to do", 4: "to do", 7: "finished"}
    runs = [flat_run("a", seed, [0.5, seed / 10], status) for seed, status in ends.items()]
    runs[-1] = flat_run("a", 7, [0.1, 0.6, 0.1, 0.1], "stopped")
    runs[-1].reason = "a rule"
    runs[3].series = runs[4].series = {}
    (grid,) = runs_table(analyse(runs, METRIC)).blocks
    (row,) = grid.rows
    assert row[1:4] == [
        "0 to 1: 0.000, 0.100; 7: 0.100",
        "7: 2",
        "2: failed: at step 1; 3 to 4: to do; 7: stopped: at step 3: a rule",
    ]


def test_means_and_chances_by_hand():
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 9.0])) == 1.5
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0  # nothing is a whole quarter
    # 1 beats 0; 2 beats 0 and ties twice; 3 beats all: (1 + 1 + 2 * 0.5 + 3) / 9
    assert wins([1, 2, 3], [0, 2, 2]).mean() == pytest.approx(6 / 9)
    assert improvement_interval([1.0, 2.0], [0.0, 0.5]) == (1.0, 1.0)  # no arm gets the other's
    assert improvement_interval([1.0, 2.0], [0.0, 3.0]) == (0.0, 1.0)  # the reference is drawn, too
    # of 27 resamples of three runs, one has the lowest value alone: 3.7 % > 2.5 %
    assert middle_interval([0.0, 1.0, 2.0]) == (0.0, 2.0)


def test_a_report_of_nothing_says_so(tmp_path):
    plan, store = make_plan({"grpo": {"top": 0.8}}), RunStore(tmp_path)
    with pytest.raises(ConfigurationError, match="no run has logged eval_reward yet"):
        report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")


def written(out: Path) -> tuple[str, str]:
    """The report as Markdown, without backslashes, and as a page."""
    markdown, page = ((out / name).read_text("utf-8") for name in ("REPORT.md", "report.html"))
    return markdown.replace("\\", ""), html.unescape(page)


def table_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


ARMS = {
    "grpo": {"top": 0.8}, "reused": {"top": 0.4}, "dapo": {"top": 0.7}, "weak": {"top": 0.3},
    "flat": {"top": 0.81}, "broken": {"top": 0.83, "collapse": 6}, "ill": {"top": 0.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of a study with what the committed ones do not have: its folder, Markdown and page."""
    folder = tmp_path_factory.mktemp("whole")
    plan, store = replace(make_plan(ARMS), against={"dapo": "reused"}), RunStore(folder / "runs")
    for number, arm in enumerate(plan.arms[:-1]):
        for run in arm.runs:
            never_learns = {"top": 0.1} if (arm.name, run.seed) == ("flat", 1) else {}
            rows = learning_rows(1000 * number + run.seed, **ARMS[arm.name] | never_learns)
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
    report_study(plan, store, folder / "study.yaml", folder / "out")
    return folder / "out", *written(folder / "out")


def test_what_a_report_and_its_page_say(whole):
    _, text, page = whole
    assert "than grpo (−0.0" not in text and "dapo is worse" not in text
    assert [words for words in (
        "dapo is better than reused", "difference from grpo (or the arm after",
        "ill: too few seeds", "3 of 21 runs have no outcome", "failed: it | died",
        "flat: of 3 seeds 1 ended below half of the arm's median: the interval assumes one bell-",
        "several profiles, which are different treatments (dtype, optimizer",
        "grpo: 3 of miniature; reused: 3 of miniature; dapo: 3 of miniature; weak: 1 of h100, 2 of",
        "0123456789 (19 runs), fedcba9876 with uncommitted changes (1 runs)",
        "grpo, step 000020, highest reward: 1.0", "[response]\nc",
        f"{'a' * 350}\n[... 100 characters ...]\n{'b' * 350}\n",
    ) if words not in text or words not in page] == []  # fmt: skip


def test_the_same_numbers_in_all_files(whole):
    out, text, page = whole
    page = re.sub(r"base64,[^\"]*|<style>.*?</style>", "", page, flags=re.DOTALL)
    in_text, on_page = (re.findall(r"[+−]?\d+\.\d{3}", of.partition("What differs")[0])
                        for of in (text, page))  # fmt: skip
    assert in_text == on_page and len(in_text) > 40
    for found in read_object(out / "report.json")["arms"].values():
        for number in (found[key] for key in ("difference", "low", "high") if found[key]):
            assert f"{number:+.3f}".replace("-", "−") in in_text
    rows = table_of(out / "runs.csv")
    assert {row["arm"] for row in rows if row["collapsed_at"]} == {"broken"}
    assert [row["status"] for row in rows[-3:]] == ["failed", "interrupted", "to do"]
    assert len(rows) == 21 and rows[0]["last_step"] == "20"


def test_the_page_needs_nothing_else(whole):
    out, _, page = whole
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    shown = re.findall(r'base64,([^"]+)"', page)
    assert len(shown) == 2 and (out / "differences.png").is_file()
    for picture in shown:
        assert Image.open(io.BytesIO(base64.b64decode(picture))).width > 500
    assert sum(path.stat().st_size for path in out.iterdir()) < 500_000


@pytest.mark.sample(1)
@pytest.mark.parametrize(("judge", "looks"), [("paired", (3, 8)), ("two_part", (4, 8))])
def test_two_names_of_the_same_runs_are_no_comparison(tmp_path, judge, looks):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.8}, "c": {"top": 0.4}}
    plan, store = make_plan(arms, range(8), looks=looks), RunStore(tmp_path)
    plan = replace(plan, judge=judge, equivalence_margin=0.05)
    alone = replace(plan, arms=plan.arms[::2])
    for number, arm in enumerate(alone.arms):
        for run in arm.runs:
            rows = learning_rows(100 * number + run.seed, arm.values["top"])
            write_run(store, run, arm.declared, rows)
    for each in (alone, plan):
        report_study(each, store, tmp_path / "study.yaml", tmp_path / each.arms[1].name)
    found, without = (read_object(tmp_path / of / "report.json")["arms"] for of in "bc")
    assert "b has the settings of a: same runs." in written(tmp_path / "b")[0]
    assert found["c"] == without["c"]  # the whole level
    assert (found["b"]["verdict"], found["b"]["pairs"]) == ("not estimable", 0)
    assert found["b"]["p_difference"] is found["b"]["p_equivalent"] is found["b"]["low"] is None
    assert StudyRuns(plan, store).undecided == []


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (SHIPPED / "studies" / "aa" / "study.yaml", "recipes/studies/aa/study.yaml"),
        ("/another/checkout/recipes/grpo.yaml", "recipes/grpo.yaml"),
        ("mine/own.yaml", "mine/own.yaml"),
        ("/elsewhere/recipes/own.yaml", "own.yaml"),
    ],
)
def test_commands_name_shipped_files_as_a_checkout_has_them(file, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shortest(Path(file)) == shown


def test_published_curves_are_paired_by_their_seeds(tmp_path):
    """In whatever order they stand; a missing one has no pair. They can be drawn beside others."""
    path = tmp_path / "mine.csv"
    path.write_text(
        "arm,seed,eval_reward\nplain,2,0.52\nplain,0,0.50\nplain,1,0.61\nplain,3,0.40\n"
        "tuned,0,0.60\ntuned,1,0.72\ntuned,3,0.50\ntuned,4,0.90\ntuned,2,0.63\n"
    )
    report_curves(path, tmp_path / "alone")
    report_curves(path, tmp_path / "out", metric="eval/reward", reference=read_curves(path))
    record = read_object(tmp_path / "out" / "report.json")
    found = record["arms"]["tuned"]
    assert (record["reference"], found["verdict"], found["pairs"]) == ("plain", "better", 4)
    assert found["difference"] == pytest.approx((0.10 + 0.11 + 0.11 + 0.10) / 4)
    text = written(tmp_path / "out")[0]
    assert text.count("+0.105 [+0.096, +0.114]") >= 2 and "Published curves" in text
    rows = table_of(tmp_path / "out" / "runs.csv")
    assert [row["status"] for row in rows if row["arm"] == "plain"][4] == "missing"
    height = {out: Image.open(tmp_path / out / "curves.png").height for out in ("out", "alone")}
    assert height["out"] > height["alone"]


def test_published_runs_that_end_early_or_in_nan(tmp_path):
    """One that ends early keeps its last value, as in the note; NaN is a collapse, and is said."""
    path = tmp_path / "mine.csv"
    ends = {"plain": "012345", "short": "0123", "lost": "012nn"}
    rows = [
        f"{arm},{seed},{step},{'nan' if value == 'n' else f'0.{value}'}"
        for arm, values in ends.items()
        for seed in (0, 1)
        for step, value in enumerate(values)
    ]
    path.write_text("\n".join(["arm,seed,step,eval_reward", *rows]))
    report_curves(path, tmp_path / "out")
    text, numbers = written(tmp_path / "out")[0], read_object(tmp_path / "out" / "report.json")
    assert numbers["arms"]["lost"]["collapsed"] == [2, 2] and "end in NaN" in text
    assert "Runs end at steps 3 to 5" in text and "![eval_reward against steps; lines" in text
    found = {row["run_name"]: row for row in table_of(tmp_path / "out" / "runs.csv")}
    mean = float(found["short-seed0"]["mean_eval_reward"])
    assert mean == pytest.approx((0.05 + 0.15 + 0.25 + 2 * 0.3) / 5)


def test_runs_that_do_not_vary_have_limits_that_json_lacks(tmp_path):
    runs = [flat_run(arm, seed, [0.2, 1.0]) for arm in "ab" for seed in range(16)]
    analysis = analyse(runs, METRIC, judge="two_part", threshold=0.4)
    write_files(Document("study", "lead", []), numbers_of(analysis, {}), tmp_path)
    assert "Infinity" not in (tmp_path / "report.json").read_text()


def test_every_arm_keeps_its_colour():
    """In a picture of few colours, also beside the bands of all."""
    figure = Figure((4, 3))
    axes = figure.add_subplot()
    for row, colour in enumerate(PALETTE):
        axes.fill_between([0, 1], row - 0.5, row + 2.5, color=colour, alpha=0.13, linewidth=0)
        axes.plot([0, 1], [row, row + 1], color=colour, linewidth=1.7)
    image = Image.open(io.BytesIO(png_of(figure))).convert("RGB")
    found = np.array([colour for _, colour in image.getcolors() or ()])
    wanted = np.array([to_rgb(colour) for colour in PALETTE]) * 255
    assert np.abs(wanted[:, None] - found).max(axis=2).min(axis=1).max() < 16


@pytest.mark.parametrize(
    ("p", "shown"), [(0.0496, "= 0.0496"), (0.0504, "= 0.0504"), (0.016, "= 0.016"),
                     (0.0004, "< 0.001"), (1.0, "= 1.000"), (None, "= –")],
)  # fmt: skip
def test_a_p_value_shows_on_which_side_of_the_level_it_lies(p, shown):
    assert p_words(p) == f"p {shown}"


def test_an_arm_is_no_formula_of_a_spreadsheet(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("arm,seed,eval_reward\n=1+1,0,0.5\nplain,0,0.6\n")
    report_curves(path, tmp_path / "out")
    rows = table_of(tmp_path / "out" / "runs.csv")
    assert [row["arm"] for row in rows] == ["'=1+1", "plain"]
    assert rows[0]["run_name"] == "'=1+1-seed0"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run_name,metric,step,value\na,eval/reward,zero,1\n", "line 2"),
        (None, "do not exist; name a CSV file"),
        ("group,arm,seed,eval_reward\nx,a,0,1\ny,a,0,1\n", "seed 0 in the groups 'x' and 'y'"),
        ("run,eval_reward\na,1\na-seed1,1\nb-seed1,1\n", "a run of arm 'a' has no seed"),
        ("run,metric,step,value\na,loss,0,1\n", "no metric 'eval_reward'; they have loss"),
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


def test_a_metric_that_no_ended_run_has_is_not_drawn():
    ended, running = flat_run("a", 0, [0.1, 0.5]), flat_run("a", 1, [0.1], "running")
    running.series[GRAD_NORM] = curve(1.0)
    whole, without = (draw_curves(analyse(runs, METRIC)) for runs in ([ended, running], [ended]))
    assert whole == without


def test_labels_keep_their_distance():
    placed = spread([0.50, 0.51, 0.52, 0.9], 0.1, 0.0, 1.0)
    assert placed == pytest.approx([0.41, 0.51, 0.61, 0.9])
    assert spread([0.0, 0.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1])
    assert spread([1.0, 1.0], 0.1, 0.0, 1.0) == pytest.approx([0.9, 1.0])
    assert spread([], 0.1, 0.0, 1.0) == []


def test_runs_that_began_with_different_weights_are_named():
    plan = make_plan({"grpo": {"start": "base"}, "a": {"start": "base"}, "b": {"start": "sft"}})
    began = [("grpo", "one"), ("grpo", "one"), ("a", "two"), ("b", "three"), ("a", None)]
    runs = [replace(flat_run(arm, 0, [0.5]), record={"start_weights": of}) for arm, of in began]
    (sentence,) = different_starts(plan, runs)
    assert "(start base) began with different weights: one (2 runs), two (1 runs);" in sentence
    assert different_starts(plan, runs[:2]) == []


UP, DOWN, DEEP = [0.1, 0.7, 0.8, 0.8], [0.1, 0.8, 0.3, 0.25], [0.1, 0.8, 0.2, 0.05]


@pytest.mark.parametrize(
    ("reference", "arm", "ended", "found"),
    [
        (UP, DEEP, 3, "collapse"),
        (UP, DEEP, 2, "too few seeds"),
        (DEEP, DOWN, 3, "better"),
        (DOWN, DEEP, 3, "worse"),
    ],
)
def test_what_counts_as_a_collapse_of_an_arm(reference, arm, ended, found):
    """Most of its runs did, and less of its reference's."""
    noisy = [[value + seed / 1000 for value in arm] for seed in range(3)]
    runs = [flat_run("a", seed, reference) for seed in range(3)]
    runs += [flat_run("b", seed, noisy[seed], "finished" if seed < ended else "to do")
             for seed in range(3)]  # fmt: skip
    analysis = analyse(runs, METRIC)
    assert found_of("b", analysis) == found
    flag = numbers_of(analysis, {})["details"]["arms"]["b"].get("collapses")
    assert flag is (None if found == "collapse" else False)
    alone = analyse([runs[0], runs[3]], METRIC)  # a study of single runs
    assert (found_of("b", alone) == "collapse") == (reference is UP)


def test_runs_that_a_look_waits_for_or_whose_end_is_missing_are_named():
    runs = [flat_run("a", seed, UP, "failed" if seed == 12 else "finished") for seed in range(16)]
    runs += [flat_run("b", seed, UP) for seed in range(8)]
    two_part: Any = {"judge": "two_part", "looks": (8, 32), "pool": 64}  # 16 of the pool at first
    (items,) = (of for of in answer(analyse(runs, METRIC, **two_part), None).blocks
                if isinstance(of, Items))  # fmt: skip
    assert items.items[0].endswith("the first is at 8 and waits, as a-seed12 failed.")
    silent, early = (replace(runs[-1], series={}, status="stopped"),
                     replace(runs[15], planned_steps=9))  # fmt: skip
    paired = analyse([*runs[13:15], early, *runs[16:18], silent], METRIC, looks=(3, 5))
    (grid,) = what_would_change(paired).blocks
    assert grid.rows[0][-1] == f"b-seed7 logged no {METRIC}; the look at 3 seeds waits for it"
    said = caveats(paired, make_plan({"a": {}}))
    assert "1 of 6 runs have no outcome: 1 of b." in said
    assert any(words.endswith("last one: a-seed15 at step 3.") for words in said)
    several = make_plan({"a": {}, "b": {}})
    several = replace(several, arms=(several.arms[0], replace(several.arms[1], evaluations=3)))
    assert "Arms differ in their evaluations: a 6, b 3; their" in " ".join(caveats(paired, several))


def test_pairs_whose_interval_would_leave_out_0():
    seen = [0.02, 0.1, 0.06]
    mean, sd = statistics.fmean(seen), statistics.stdev(seen)
    assert pairs_to_see(t_interval(seen)) == 5  # by the t of five pairs, not of three
    for n, is_enough in ((4, False), (5, True)):
        assert (stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) < mean) == is_enough
    assert pairs_to_see(t_interval([0.05, 0.06, 0.07])) is None  # it leaves out 0 already
    assert pairs_to_see(t_interval([-1.0, 1.0, 0.001])) is None
