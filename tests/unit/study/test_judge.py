"""`trl-ablate judge`: the same runs in every form, what is found in them, and what is refused."""

import csv
import json
import re

import numpy as np
import pytest
from scipy.stats import binom

from trl_ablate.cli.judge import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.tables import arm_and_seed
from trl_ablate.run.logged import Series
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.foreign_runs import Naming, metric_of, read_runs
from trl_ablate.study.report.judged_arms import Rules, judge_runs
from trl_ablate.study.two_part import SHARES_PART, fisher_p
from trl_ablate.study.verdict import Verdict

STEPS = (0, 50, 100)
RUNS = {("dr_grpo", 0): 0.5, ("dr_grpo", 1): 0.54, ("std", 0): 0.6, ("std", 3): 0.1}
"""Final value of each run; it rises from 0 in a line."""


def value(final, step):
    return final * step / STEPS[-1]


def write(path, header, rows, mark=","):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows([header, *rows])
    return path


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def logged(final):
    return [{"step": step, "eval_reward": value(final, step)} for step in STEPS]


def table(header, row, file="a.csv", mark=","):
    """Writes a line for each point of each run: `row` of its arm, seed, step and value."""
    return lambda folder: write(
        folder / file, header,
        [row(arm, seed, step, value(final, step)) for (arm, seed), final in RUNS.items()
         for step in STEPS], mark,
    )  # fmt: skip


def wide(header, column, file, repeats=1):
    """Writes a line for each step and a column for each run."""
    return lambda folder: write(
        folder / file,
        [header, *(name for run in RUNS for name in column(*run))],
        [[step, *(value(final, step) for final in RUNS.values() for _ in range(repeats))]
         for step in STEPS],
    )  # fmt: skip


def objects(folder):
    rows = [{"run": f"{arm}-s{seed}", **row} for (arm, seed), final in RUNS.items()
            for row in logged(final)]  # fmt: skip
    return lines(folder / "runs.jsonl", rows)


def folders(folder):
    for (arm, seed), final in RUNS.items():
        lines(folder / "runs" / arm / f"seed_{seed}" / "metrics.jsonl", logged(final))
    return folder / "runs"


def states(folder):
    for (arm, seed), final in RUNS.items():
        checkpoint = folder / "runs" / arm / f"seed_{seed}" / "checkpoint-100"
        lines(checkpoint / "trainer_state.json", [{"log_history": logged(final)}])
    return folder / "runs"


def own_runs(folder):
    for number, ((arm, seed), final) in enumerate(RUNS.items()):
        run = folder / "runs" / f"r{number}"
        lines(run / "run.json", [{"arm": arm, "seed": seed}])
        rows = [{**row, "grpo_step": row["step"], "step": 4 * row["step"]} for row in logged(final)]
        lines(run / "metrics.jsonl", rows)
    return folder / "runs"


long_form = table(
    ["run_name", "metric", "step", "value"],
    lambda arm, seed, step, v: (f"{arm}_seed_{seed}", "eval/reward", step, v),
)
FORMS = {
    "long": long_form,
    "long, with columns": table(
        ["run_name", "method", "random_seed", "metric", "step", "value"],
        lambda arm, seed, step, v: (f"{arm}!{seed}", arm, seed, "eval/reward", step, v),
    ),
    "rows": table(
        ["Arm", "Seed", "_step", "eval/reward", "State"],
        lambda arm, seed, step, v: (arm, seed, step, v, "ok"), "a.tsv", "\t",
    ),
    "chart of W&B": wide(
        "Step",
        lambda arm, seed: [f"{arm}-s{seed} - eval/reward{end}" for end in ("", "__MIN", "__MAX")],
        "chart.csv", repeats=3,
    ),
    "a column a run": wide("step", lambda arm, seed: [f"{arm}.seed{seed}"], "eval.csv"),
    "objects": objects, "folders": folders, "states": states, "own runs": own_runs,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_has_the_same_runs(form, tmp_path):
    runs = read_runs([form(tmp_path)])
    assert {(run.arm, run.seed) for run in runs} == {*RUNS}
    metric = metric_of(runs, None, "they")
    assert metric in ("eval_reward", "value")
    for run in runs:
        series = run.series[metric]
        assert tuple(series.steps) == STEPS
        assert series.values[-1] == pytest.approx(RUNS[run.arm, run.seed or 0])


def final_values(header, row, name="a.csv"):
    """Writes `row` of each run's arm, seed and final value; or the given lines."""
    rows = row if isinstance(row, list) else [row(*run, final) for run, final in RUNS.items()]
    return lambda folder: write(folder / name, header, rows)


finals = final_values(["arm", "seed", "accuracy", "questions"], lambda a, s, x: (a, s, x, 1024))
BY_SEED = [("dr_grpo", 0.5, 0.54, ""), ("std", 0.6, "", 0.1)]
FINALS = {
    "columns": finals,
    "by seed": final_values(["method", "seed0", "seed_1", "s3"], BY_SEED, "accuracy.csv"),
    "by seed and metric": final_values(["Name", "acc_seed0", "acc_seed1", "acc_seed3"], BY_SEED),
    "names": final_values(
        ["Name", "accuracy", "State"], lambda arm, seed, x: (f"{arm}-seed{seed}", x, "finished")
    ),
    "long": final_values(
        ["arm", "seed", "Metric", "Value"],
        [(*run, *pair) for run, x in RUNS.items() for pair in (("accuracy", x), ("length", 40))],
    ),
    "runs of W&B": final_values(
        ["Name", "State", "run_name", "seed", "train/global_step", "eval/reward"],
        lambda arm, seed, x: (arm, "finished", "", seed, 100 + seed, x),
    ),
}


def test_the_page_draws_curves_where_there_are_some(tmp_path):
    for form, name, drawn in ((long_form, "a", True), (finals, "b", False)):
        out = tmp_path / name / "out"
        assert main([str(form(tmp_path / name)), "--out", str(out)]) == 0
        assert (out / "curves.png").is_file() is drawn
        assert "http" not in re.sub(r"base64,[^\"]*", "", (out / "report.html").read_text())


@pytest.mark.parametrize("form", FINALS.values(), ids=FINALS)
def test_final_values_alone(form, tmp_path):
    runs = read_runs([form(tmp_path)])
    metric = metric_of(runs, None, "they")
    assert {(r.arm, r.seed): r.series[metric].values for r in runs} == {
        place: [final] for place, final in RUNS.items()
    }


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("dr_grpo_seed_2", ("dr_grpo", 2)), ("grpo-s3", ("grpo", 3)), ("grpo seed=4", ("grpo", 4)),
        ("seed1/no_std", ("no_std", 1)), ("grpo_s2_lr3", ("grpo_lr3", 2)),
        ("lr_1e-5", ("lr_1e-5", None)), ("std_dev", ("std_dev", None)),
        ("grpo_steps200", ("grpo_steps200", None)), ("qwen-s1.5b", ("qwen-s1.5b", None)),
    ],
)  # fmt: skip
def test_arm_and_seed_in_a_name(name, found):
    assert arm_and_seed(name) == found


def test_what_the_user_states_comes_first(tmp_path):
    rows = [("a_1", "left", 0.5), ("a_2", "left", 0.6), ("b_1", "right", 0.7)]
    file = write(tmp_path / "x.csv", ["name", "side", "accuracy"], rows)
    named = read_runs([file], Naming({"group": "side"}, "(?P<arm>.+)_(?P<seed>[0-9]+)"))
    assert [(r.arm, r.seed, r.group) for r in named] == [
        ("a", 1, "left"), ("a", 2, "left"), ("b", 1, "right"),
    ]  # fmt: skip
    assert {run.arm for run in read_runs([file], Naming({"arm": "side"}))} == {"left", "right"}
    file = write(tmp_path / "y.csv", ["experiment", "x"], [("left", 0.5), ("right", 0.6)])
    (left, right) = read_runs([file], Naming({"arm": "experiment"}))
    assert (left.arm, right.arm) == ("left", "right") and left.group == right.group


def test_runs_named_by_their_seeds_are_of_the_folder_above(tmp_path):
    arms = sorted((folders(tmp_path)).iterdir())
    for paths in (arms, [seed for arm in arms for seed in sorted(arm.iterdir())]):
        assert {(run.arm, run.seed) for run in read_runs(paths)} == {*RUNS}


def test_files_that_hold_the_same_run_are_not_joined(tmp_path):
    files = [write(tmp_path / f"seed{n}.csv", ["arm", "accuracy"], [("a", n)]) for n in range(2)]
    assert [run.series["accuracy"].values for run in read_runs(files)] == [[0.0], [1.0]]
    with pytest.raises(ConfigurationError, match="have different accuracy of 'a' at step 0"):
        read_runs([tmp_path])
    write(tmp_path / "seed1.csv", ["arm", "loss"], [("a", 1)])
    (run,) = read_runs([tmp_path])
    assert {*run.series} == {"accuracy", "loss"}


WANDB_RUNS = "Name,State,train/global_step,train/train_runtime,eval/reward\n"
LONG, CURVE = "arm,seed,metric,step,value\n", "Wall time,Step,Value\n"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.csv", f"{WANDB_RUNS}a-s0,finished,9,60,0.5\na-s1,crashed,4,,0.1\n", {0: 0.5, 1: 0.1}),
        ("a.csv", "name,x\na,0.5\na-seed0,0.1\n", {None: 0.5, 0: 0.1}),
        ("a.csv", "Name,State,_step,x\na,ok,0,0.1\na,ok,50,0.5\n", {None: 0.5}),
        ("a.csv", "Method,Metric,seed0,seed1\na,x,0.5,0.1\n", {0: 0.5, 1: 0.1}),
        ("a.csv", f"{LONG}a,0,x,1,0.1\n\na,0,x,2,0.5\n\n", {0: 0.5}),
        ("run-a-s0-tag-x.csv", f"{CURVE}7,1,0.1\n\n8,2,0.5\n\n", {0: 0.5}),
        ("a.jsonl", '{"name": "a-s0", "x": 1}\n{"name": "a-s1", "x": 2}', {0: 1, 1: 2}),
        ("a.jsonl", '{"arm": "a", "step": 1, "x": 1}\n{"arm": "a", "step": 2, "x"', {None: 1}),
        ("a.jsonl", '{"arm": "a", "step": 5, "x": 1, "loss": null}\n'
         '{"arm": "a", "step": 5, "x": null, "loss": "nan"}\n', {None: 1}),
        ("a.jsonl", '{"arm": "a", "step": 5, "x": 1, "train_runtime": null}\n'
         '{"arm": "a", "step": 6, "x": null, "train_runtime": 60}\n', {None: 1}),
    ],
)  # fmt: skip
def test_no_value_is_lost(tmp_path, name, text, found):
    (tmp_path / name).write_text(text)
    runs = read_runs([tmp_path / name])
    assert {run.arm for run in runs} == {"a"}
    (metric,) = {"eval_reward", "x", "value"} & {*runs[0].series}
    assert {run.seed: run.series[metric].values[-1] for run in runs} == found


def test_columns_of_several_arms_name_them_whatever_the_row_names(tmp_path):
    file = write(tmp_path / "x.csv", ["step", "name", "a-s0", "b-s0"], [(1, "gsm8k", 0.5, 0.1)])
    assert [(run.arm, run.seed) for run in read_runs([file])] == [("a", 0), ("b", 0)]


def outcomes(tmp_path, arms, groups=("one",)):
    rows = [(group, arm, seed, x) for group in groups for arm, values in arms.items()
            for seed, x in enumerate(values)]  # fmt: skip
    return write(tmp_path / "x.csv", ["group", "arm", "seed", "accuracy"], rows)


def judged(file, reference=None, **rules):
    """The arms of the only group."""
    found = judge_runs(read_runs([file]), "accuracy", reference, Rules(**rules))
    (arms,) = found.groups.values()
    return arms


def test_planted_truths_are_found(tmp_path):
    rng = np.random.default_rng(1)
    good = 0.5 + 0.02 * rng.normal(size=(5, 24))
    arms = {
        "plain": good[0], "better": good[1] + 0.05, "same": good[2], "close": good[3] + 0.004,
        "fragile": np.where(np.arange(24) % 3 > 0, 0.05, good[4]),
    }  # fmt: skip
    found = judged(outcomes(tmp_path, arms), margin=0.04)
    assert {one.arm: one.verdict for one in found} == {
        "plain": None, "better": Verdict.BETTER, "same": Verdict.EQUIVALENT,
        "close": Verdict.EQUIVALENT, "fragile": Verdict.FAILS_MORE,
    }  # fmt: skip
    by_name = {one.arm: one for one in found}
    assert by_name["fragile"].shares.arm == (8, 24)
    assert by_name["plain"].threshold == pytest.approx(np.median(arms["plain"]) / 2)


def test_runs_needed_do_decide(tmp_path):
    """With as many runs as were called for, about 80 % of such comparisons are decided."""
    arms = {"a": [0.5, 0.52, 0.48, 0.5], "b": [0.53, 0.55, 0.51, 0.53]}
    first = judged(outcomes(tmp_path, arms), "a")
    needed = first[1].needed
    assert first[1].verdict is Verdict.SAME and needed is not None and needed > 4
    rng, decided = np.random.default_rng(0), 0
    for _ in range(60):
        drawn = {name: np.mean(x) + np.std(x, ddof=1) * rng.normal(size=needed)
                 for name, x in arms.items()}  # fmt: skip
        decided += judged(outcomes(tmp_path, drawn), "a")[1].verdict is Verdict.BETTER
    assert 0.65 < decided / 60 < 0.95


@pytest.mark.parametrize(("k", "n", "arms"), [(2, 4, 1), (1, 4, 1), (0, 3, 1), (0, 3, 8)])
def test_runs_needed_decide_by_shares(tmp_path, k, n, arms):
    """The exact power of Fisher's test at the number that is called for."""
    of = {"all": [0.5] * n} | {f"a{i}": [0.5] * k + [0.0] * (n - k) for i in range(arms)}
    needed = judged(outcomes(tmp_path, of), "all")[1].needed
    level = SHARES_PART * 0.05 / arms
    seen = [x for x in range(needed + 1) if fisher_p(x, needed, needed, needed) <= level]
    power = float(binom.pmf(seen, needed, k / n).sum())
    assert 0.78 <= power <= (1.0 if k == 0 else 0.95), (needed, power)


def test_a_run_that_ends_in_nan_does_not_count_with_what_it_had_before(tmp_path, capsys):
    """NaN between values stands for what was not logged, and ends nothing."""
    rows = [
        (f"{arm}-s{seed}", at, "nan" if lost else 0.5 + seed / 100 + at / 1000, 1.0)
        for arm in ("ref", "hot", "gaps")
        for seed in range(4)
        for at in range(0, 110, 10)
        if (lost := (arm == "hot" and at > 50) or (arm == "gaps" and at % 20)) or True
    ]
    file = write(tmp_path / "x.csv", ["run", "step", "eval_reward", "loss"], rows)
    runs = {run.name: run.series["eval_reward"] for run in read_runs([file])}
    assert (runs["hot-seed0"].steps[-1], runs["hot-seed0"].values[-1]) == (60, 0.0)
    assert runs["gaps-seed0"].steps == [0, 20, 40, 60, 80, 100]
    assert main([str(file), "--base", "0"]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "runs end at steps 60 to 100" in told
    assert "hot-seed2, hot-seed3 end in NaN, and count as 0" in told


@pytest.mark.parametrize("n", [4, 8])
def test_equal_arms_are_seldom_told_apart(tmp_path, n):
    """Three arms like the reference, of whose runs a fifth fail: a false difference in any of them
    in 5 % of all files at most (2.5 standard errors more)."""
    rng, wrong = np.random.default_rng(n), 0
    for _ in range(1500):
        outcomes = np.where(rng.random((4, n)) < 0.2, 0.05, 0.5 + 0.02 * rng.normal(size=(4, n)))
        runs = [Run(f"a{arm}", seed, "finished", series={"x": Series([1.0], [float(value)])})
                for (arm, seed), value in np.ndenumerate(outcomes)]  # fmt: skip
        (found,) = judge_runs(runs, "x", None, Rules(threshold=0.3)).groups.values()
        wrong += any(one.verdict is not None and one.verdict.differs for one in found)
    assert wrong / 1500 < 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 1500)


def test_a_run_without_the_metric_is_named(tmp_path, capsys):
    rows = [("a", 0, 0.5, 1), ("a", 1, 0.6, 1), ("b", 0, "", 1), ("b", 1, 0.5, 1)]
    file = write(tmp_path / "x.csv", ["arm", "seed", "accuracy", "loss"], rows)
    assert main([str(file)]) == 0
    assert "left out, as without accuracy: b-seed0" in capsys.readouterr().out


def test_groups_are_pooled_and_left_out(tmp_path, capsys):
    arms = {"plain": [0.5, 0.51, 0.49, 0.5], "new": [0.58, 0.6, 0.1, 0.59]}
    file = outcomes(tmp_path, arms, ("x", "y", "z"))
    assert main([str(file), "--json", "--out", str(tmp_path / "out")]) == 0
    numbers = json.loads((tmp_path / "out" / "report.json").read_text())
    assert json.loads(capsys.readouterr().out.partition(str(tmp_path))[0]) == numbers
    (pooled,) = numbers["pooled"]
    assert [share["arm"] for share in pooled["shares"]] == [[3, 4]] * 3
    assert pooled["means"]["difference"] == pytest.approx(0.09)
    assert {*pooled["without"]} == {"x", "y", "z"} and pooled["odds"]["odds_ratio"] == 0
    text = (tmp_path / "out" / "REPORT.md").read_text()
    assert "9 of 12 against 12 of 12" in text and "| x, y, z |" in text
    assert (tmp_path / "out" / "runs.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(file), "--reference", "plain"]) == 0
    assert "+0.090" in capsys.readouterr().out


def test_names_are_neither_formulas_nor_markup(tmp_path, capsys):
    arms = {"a[dev]": [0.5, 0.51, 0.49], "$_$": [0.5, 0.51, 0.48]}
    file = outcomes(tmp_path, arms, ("x $_$ y", "z $_$"))
    assert main([str(file), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "a[dev]" in shown and "\\[" not in shown


def test_a_difference_of_two_groups_is_not_left_out_one_by_one():
    """The third group has one run of each arm, and so a share but no difference of means."""
    runs = [
        Run(arm, seed, "finished", series={"x": Series([1.0], [value + seed / 100])}, group=group)
        for group, n in {"a": 4, "b": 4, "c": 1}.items()
        for arm, value in {"plain": 0.5, "new": 0.6}.items()
        for seed in range(n)
    ]
    (pooled,) = judge_runs(runs, "x", "plain", Rules(threshold=0.3)).pooled
    assert pooled.means is not None and pooled.means.difference == pytest.approx(0.1)
    assert {name: means for name, (_, means) in pooled.without.items()} == dict.fromkeys("abc")


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("arm,seed,accuracy\na,x,0.5\n", [], "seed is 'x'; it takes a whole number"),
        ("arm,seed,accuracy\na,inf,0.5\n", [], "seed is 'inf'; it takes a whole number"),
        ("arm,seed,accuracy\na,0.7,0.5\n", [], "seed is '0.7'; it takes a whole number"),
        ("arm,seed,x\na,0,0.5\n", ["--margin", "0"], "--margin is 0.0; allowed: a positive"),
        ("arm,seed,x\na,0,0.5\n", ["--margin", "nan"], "--margin is nan; allowed: a positive"),
        ("run,metric,step,value\na\n", [], "line 2, names no metric"),
        ("Wall time,Step,Value\n1\n", [], "line 2 has a row without a step"),
        ("arm,seed,accuracy\na,0,0.5\na,0,0.6\n", [], "the same arm 'a' and the same seed"),
        ("arm,seed,x,y\na,0,0.5,1\n", [], "several metrics (choose with --metric); they have x, y"),
        ("arm,seed,x\na,0,0.5\n", ["--metric", "z"], "have no metric 'z'; they have x"),
        ("arm,seed,x\na,0,0.5\n", ["--reference", "b"], "--reference is 'b'; the arms are a"),
        ("arm,seed,x\na,0,0.5\n", ["--group", "lab"], "has no column 'lab'; it has arm, seed, x"),
        ("name,x\na,0.5\n", ["--names", "("], "is not a regular expression"),
        ("name,x\na,0.5\n", ["--names", "b"], "finds no arm in the name 'a'"),
        ("run,metric,step\na,x,1\n", [], "no column 'value'"),
        ("arm,x,x\na,0,0.5\n", [], "has two columns 'x'"),
        ("arm,x\na,50.5\n", ["--questions", "9"], "a run of 'a' ends at 50.5; give shares"),
        ("a,b\nc,d\n", [], "has no logged steps"),
        ("", [], "is not a CSV file with a header"),
    ],
)
def test_refused_in_one_sentence(tmp_path, capsys, text, options, sentence):
    file = tmp_path / "x.csv"
    file.write_text(text)
    assert main([str(file), *options]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown and shown.count("\n") == 1


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1, 2]")
    (tmp_path / "empty").mkdir()
    for name, sentence in (("a.json", "other things than objects"), ("empty", "no log of a run")):
        with pytest.raises(ConfigurationError, match=sentence):
            read_runs([tmp_path / name])
