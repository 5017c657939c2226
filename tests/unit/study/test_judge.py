"""`trl-ablate judge`: the same runs in every form, what is found in them, and what is refused."""

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
from trl_ablate.study.report.foreign_runs import metric_of, read_runs
from trl_ablate.study.report.judged_arms import Rules, judge_runs
from trl_ablate.study.two_part import SHARES_PART, fisher_p
from trl_ablate.study.verdict import Verdict


def written(folder, files):
    """The file, or the folder of several."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder if len(files) > 1 else folder / name


def lines(final, **more):
    """A log that rises from 0 in two steps."""
    return logged([{"step": at, "eval_reward": x, **more} for at, x in ((0, 0), (9, final))])


def logged(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def own(arm, seed, final):
    """A run of this package, which takes four optimizer steps in a GRPO step."""
    record = json.dumps({"arm": arm, "seed": seed})
    rows = [{"step": 4 * at, "grpo_step": at, "eval_reward": x} for at, x in ((0, 0), (9, final))]
    return {f"{arm}x/run.json": record, f"{arm}x/metrics.jsonl": logged(rows)}


def state(final):
    return json.dumps({"log_history": [*map(json.loads, lines(final).splitlines())]})


LONG = "run,method,random_seed,metric,step,value\n"
CHART = "Step,a-s0 - eval/reward,a-s0 - eval/reward__MIN,b-s3 - eval/reward\n"
MELTED = (
    "run,Training/Global_Step,variable,value\na-s0,0,x,0\na-s0,9,x,0.5\nb-s3,0,x,0\nb-s3,9,x,0.1"
)
SPLITS = (
    '{{"run": "{run}", "split": "train", "step": {step}, "x": {trained}, "eval_reward": null}}\n'
    '{{"run": "{run}", "split": "test", "step": {step}, "x": null, "eval_reward": {tested}}}\n'
)
CURVES = {
    "long": {"x.csv": "run_name,metric,step,value\na_seed_0,x,0,0\na_seed_0,x,9,0.5\n"
             "b_seed_3,x,0,0\nb_seed_3,x,9,0.1"},
    "long, with columns": {"x.csv": f"{LONG}p,a,0,x,0,0\np,a,0,x,9,0.5\n\nq,b,3,x,0,0\n"
                           "q,b,3,x,9,0.1"},
    "rows": {"x.tsv": "Arm\tSeed\t_step\teval/reward\tState\na\t0\t0\t0\tok\na\t0\t9\t0.5\tok\n"
             "b\t3\t0\t0\tok\nb\t3\t9\t0.1\tok"},
    "splits": {"x.jsonl": "".join(
        SPLITS.format(run=run, step=step, trained=step / 9, tested=tested)
        for run, last in (("a-s0", 0.5), ("b-s3", 0.1)) for step, tested in ((0, 0), (9, last))
    )},
    "melted": {"x.CSV": MELTED},
    "chart of a metric with a space": {
        "x.csv": CHART.replace("/", " ").replace(",", " ,") + "0,0,7,0\n9,0.5,7,0.1"
    },
    "a file a run": {"a-s0.jsonl": lines(0.5), "b-s3.jsonl": lines(0.1)},
    "the same file a folder": {"a/seed_0/progress.csv": "step,score\n0,0\n9,50%",
                               "b/seed_3/progress.csv": "step,score\n0,0\n9,10%"},
    "chart of W&B": {"x.csv": f"{CHART}0,0,7,0\n9,0.5,7,0.1"},
    "a column a run": {"x.csv": "step,a.seed0,b.seed3\n0,0,0\n9,0.5,0.1"},
    "a column a run, a task a row": {"x.csv": "step,name,a-s0,b-s3\n0,gsm8k,0,0\n9,gsm8k,0.5,0.1"},
    "objects": {"x.jsonl": lines(0.5, run="a-s0") + lines(0.1, run="b-s3")},
    "folders": {"a/seed_0/metrics.jsonl": lines(0.5), "b/seed_3/metrics.jsonl": lines(0.1)},
    "states": {"a/seed_0/checkpoint-9/trainer_state.json": state(0.5),
               "b/seed_3/checkpoint-9/trainer_state.json": state(0.1)},
    "own runs": own("a", 0, 0.5) | own("b", 3, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("form", CURVES)
def test_every_form_has_the_same_curves(form, tmp_path):
    runs = read_runs([written(tmp_path, CURVES[form])])
    metric = metric_of(runs, None, "they")
    assert {tuple(run.series[metric].steps) for run in runs} == {(0, 9)}
    values = {(run.arm, run.seed): run.series[metric].values for run in runs}
    assert values == {("a", 0): [0, 0.5], ("b", 3): [0, 0.1]}


A_AND_B = {("a", 0): 0.5, ("a", 1): 0.54, ("b", 0): 0.6, ("b", 3): 0.1}
FIRST, SEEDS, UNSEEDED = {("a", 0): 0.5}, {("a", 0): 0.5, ("a", 1): 0.1}, {("a", None): 0.5}
BY_SEED = "a,0.5,0.54,\nb,0.6,,0.1"
WANDB = "Name,State,train/global_step,train/train_runtime,eval/reward\n"
NAMED = "Name,State,run_name,seed,train/global_step,eval/reward\n"
NULLS = (
    '{"arm": "a", "step": 5, "x": 0.5, "%s": null}\n{"arm": "a", "step": %s, "x": null, "%s": %s}'
)
ENDS = {
    "columns": ("arm,seed,accuracy,n\na,0,0.5,9\na,1,0.54,9\nb,0,0.6,9\nb,3,0.1,9", A_AND_B),
    "by seed": (f"method,seed0,seed_1,s3\n{BY_SEED}", A_AND_B),
    "by seed and metric": (f"Name,acc_seed0,acc_seed1,acc_seed3\n{BY_SEED}", A_AND_B),
    "a metric's name beside": ("Method,Metric,seed0,seed1\na,x,0.5,0.1\n", SEEDS),
    "long": ("arm,seed,Metric,Value\na,0,accuracy,0.5\na,0,length,40\n", FIRST),
    "long, empty lines": ("arm,seed,metric,step,value\na,0,x,1,0.1\n\na,0,x,2,0.5\n\n", FIRST),
    "names": ("name,x\na,0.5\na-seed1,0.1\n", UNSEEDED | {("a", 1): 0.1}),
    "runs of W&B": (f"{NAMED}a,finished,,0,100,0.5\na,finished,,1,101,0.1", SEEDS),
    "totals of W&B": (f"{WANDB}a-s0,finished,9,60,0.5\na-s1,crashed,4,,0.1\n", SEEDS),
    "history of W&B": ("Name,State,_step,x\na,ok,0,0.1\na,ok,5,0.5", UNSEEDED),
    "run-a-s0-tag-x.csv": ("Wall time,Step,Value\n7,1,0.1\n\n8,2,0.5\n\n", FIRST),  # TensorBoard
    "objects.jsonl": ('{"name": "a-s0", "x": 0.5}\n{"name": "a-s1", "x": 0.1}', SEEDS),
    "cut off.jsonl": ('{"arm": "a", "step": 1, "x": 0.5}\n{"arm": "a", "step": 2, "x"', UNSEEDED),
    "nulls.jsonl": (NULLS % ("loss", 5, "loss", '"nan"'), UNSEEDED),
    "total.jsonl": (NULLS % ("train_runtime", 6, "train_runtime", 60), UNSEEDED),
}


@pytest.mark.parametrize("form", ENDS)
def test_no_final_value_is_lost(form, tmp_path):
    text, found = ENDS[form]
    runs = read_runs([written(tmp_path, {form if "." in form else "x.csv": text})])
    (metric,) = {"eval_reward", "accuracy", "x", "value"} & {*runs[0].series}
    assert {(run.arm, run.seed): run.series[metric].values[-1] for run in runs} == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("dr_grpo_seed_2", ("dr_grpo", 2)), ("grpo-s3", ("grpo", 3)), ("grpo seed=4", ("grpo", 4)),
        ("seed1/no_std", ("no_std", 1)), ("grpo_s2_lr3", ("grpo_lr3", 2)),
        ("math-s1-seed3", ("math-s1", 3)), ("a (seed: 3)", ("a", 3)), ("a.s0.v2", ("a.v2", 0)),
        ("lr_1e-5", ("lr_1e-5", None)), ("std_dev", ("std_dev", None)),
        ("grpo_steps200", ("grpo_steps200", None)), ("qwen-s1.5b", ("qwen-s1.5b", None)),
    ],
)  # fmt: skip
def test_arm_and_seed_in_a_name(name, found):
    assert arm_and_seed(name) == found


def test_what_the_user_states_comes_first(tmp_path):
    text = "name,side,accuracy\na_1,left,0.5\na_2,left,0.6\nb_1,right,0.7"
    file = written(tmp_path, {"x.csv": text})
    named = read_runs([file], {"group": "side"}, "(?P<arm>.+)_(?P<seed>[0-9]+)")
    assert [(r.arm, r.seed, r.group) for r in named] == [
        ("a", 1, "left"), ("a", 2, "left"), ("b", 1, "right"),
    ]  # fmt: skip
    assert {run.arm for run in read_runs([file], {"arm": "side"})} == {"left", "right"}
    file.write_text("experiment,x\nleft,0.5\nright,0.6")
    (left, right) = read_runs([file], {"arm": "experiment"})
    assert (left.arm, right.arm) == ("left", "right") and left.group == right.group


def test_runs_named_by_their_seeds_are_of_the_folder_above(tmp_path):
    arms = sorted(written(tmp_path, CURVES["folders"]).iterdir())
    for paths in (arms, [seed for arm in arms for seed in arm.iterdir()]):
        assert {(run.arm, run.seed) for run in read_runs(paths)} == {("a", 0), ("b", 3)}


def test_a_run_is_counted_once(tmp_path):
    """Whether its file is named twice, or several of its checkpoints are."""
    states = {f"checkpoint-{at}/trainer_state.json": state(at / 10) for at in (5, 9)}
    written(tmp_path / "a-s0", states)
    files = [tmp_path / "a-s0" / name for name in (*states, *states)]
    (run,) = read_runs(files)
    assert run.name == "a-seed0" and run.series["eval_reward"].values[-1] == 0.9


def test_each_file_can_be_a_group(tmp_path):
    files = {f"{lab}.csv": f"arm,seed,x\na,0,{x}" for lab, x in (("mine", 0.5), ("theirs", 0.6))}
    paths = [written(tmp_path, files) / name for name in files]
    assert [run.group for run in read_runs(paths, {"group": "file"})] == ["mine", "theirs"]
    with pytest.raises(ConfigurationError, match="mine.csv and .*theirs.csv; .* give --group file"):
        read_runs(paths)


def test_files_that_hold_the_same_run_are_not_joined(tmp_path):
    files = {f"seed{n}.csv": f"arm,accuracy\na,{n}" for n in range(2)}
    written(tmp_path, files)
    runs = read_runs([tmp_path / name for name in files])
    assert [run.series["accuracy"].values for run in runs] == [[0.0], [1.0]]
    with pytest.raises(ConfigurationError, match="have different accuracy of 'a' at step 0"):
        read_runs([tmp_path])
    written(tmp_path, {"seed1.csv": "arm,loss\na,1"})
    (run,) = read_runs([tmp_path])
    assert {*run.series} == {"accuracy", "loss"}


def runs_of(arms, group=None):
    return [
        Run(arm, seed, "finished", series={"x": Series([1.0], [float(value)])}, group=group)
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]


def judged(arms, **rules):
    """Against the first one."""
    (found,) = judge_runs(runs_of(arms), "x", None, Rules(**rules)).groups.values()
    return {one.arm: one for one in found}


def test_few_runs_are_never_equivalent():
    """Three that agree by chance say little about runs of which one in ten is different."""
    assert judged({"a": [0.7, 0.701, 0.699] * 2, "b": [0.7, 0.702, 0.698] * 2}, margin=0.02)[
        "b"
    ].verdict is Verdict.SAME  # fmt: skip


def test_planted_truths_are_found():
    rng = np.random.default_rng(1)
    good = 0.5 + 0.02 * rng.normal(size=(5, 24))
    arms = {
        "plain": good[0], "better": good[1] + 0.05, "same": good[2], "close": good[3] + 0.004,
        "fragile": np.where(np.arange(24) % 3 > 0, 0.05, good[4]),
    }  # fmt: skip
    found = judged(arms, margin=0.04)
    assert {name: one.verdict for name, one in found.items()} == {
        "plain": None, "better": Verdict.BETTER, "same": Verdict.EQUIVALENT,
        "close": Verdict.EQUIVALENT, "fragile": Verdict.FAILS_MORE,
    }  # fmt: skip
    assert found["fragile"].shares.arm == (8, 24)
    assert found["plain"].threshold == pytest.approx(np.median(arms["plain"]) / 2)


def test_runs_needed_do_decide():
    """With as many runs as were called for, about 80 % of such comparisons are decided."""
    arms = {"a": [0.5, 0.52, 0.48, 0.5], "b": [0.53, 0.55, 0.51, 0.53]}
    first = judged(arms)["b"]
    assert first.verdict is Verdict.SAME and first.needed is not None and first.needed > 4
    rng, decided = np.random.default_rng(0), 0
    for _ in range(60):
        drawn = {name: np.mean(x) + np.std(x, ddof=1) * rng.normal(size=first.needed)
                 for name, x in arms.items()}  # fmt: skip
        decided += judged(drawn)["b"].verdict is Verdict.BETTER
    assert 0.65 < decided / 60 < 0.95


@pytest.mark.parametrize(("ends", "needed"), [((0.5, 0.5), None), ((0.5, 0.50001), 1001)])
def test_runs_needed_are_unknown_or_too_many(ends, needed):
    spread = 0.1 * (ends[0] != ends[1])
    arms = {name: [end, end + spread, end] for name, end in zip("ab", ends, strict=True)}
    assert judged(arms)["b"].needed == needed


@pytest.mark.parametrize(("k", "n", "arms"), [(2, 4, 1), (1, 4, 1), (0, 3, 1), (0, 3, 8)])
def test_runs_needed_decide_by_shares(k, n, arms):
    """The exact power of Fisher's test at the number that is called for."""
    of = {"all": [0.5] * n} | {f"a{i}": [0.5] * k + [0.0] * (n - k) for i in range(arms)}
    needed = judged(of)["a0"].needed
    level = SHARES_PART * 0.05 / arms
    seen = [x for x in range(needed + 1) if fisher_p(x, needed, needed, needed) <= level]
    power = float(binom.pmf(seen, needed, k / n).sum())
    assert 0.78 <= power <= (1.0 if k == 0 else 0.95), (needed, power)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 8])
def test_equal_arms_are_seldom_told_apart(n):
    """Three arms like the reference, of whose runs a fifth fail: a false difference in any of them
    in 5 % of all files at most (2.5 standard errors more)."""
    rng, wrong = np.random.default_rng(n), 0
    for _ in range(1500):
        ends = np.where(rng.random((4, n)) < 0.2, 0.05, 0.5 + 0.02 * rng.normal(size=(4, n)))
        found = judged(dict(zip("abcd", ends, strict=True)), threshold=0.3).values()
        wrong += any(one.verdict is not None and one.verdict.differs for one in found)
    assert wrong / 1500 < 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 1500)


def test_a_run_that_ends_in_nan_does_not_count_with_what_it_had_before(tmp_path, capsys):
    """NaN between values stands for what was not logged, and ends nothing."""
    header = "step,ref-s0,ref-s1,hot-s0,hot-s1,gaps-s0,late-s0\n"
    body = (
        "0,.5,.5,.5,.5,.5,nan\n50,.6,.6,.6,.6,nan,.6\n"
        "60,.6,.6,nan,nan,.6,nan\n100,.7,.7,nan,nan,.7,-inf"
    )
    file, out = written(tmp_path, {"x.csv": header + body}), tmp_path / "out"
    runs = {run.name: run.series["value"] for run in read_runs([file])}
    assert (runs["hot-seed0"].steps, runs["hot-seed0"].values[-1]) == ([0, 50, 60], 0.0)
    assert runs["gaps-seed0"].steps == [0, 60, 100]
    assert (runs["late-seed0"].steps, runs["late-seed0"].values) == ([50, 60], [0.6, 0.0])
    assert main([str(file), "--base", "0", "--out", str(out)]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "runs end at steps 60 to 100" in told
    assert "end in NaN, and count as 0 or their lowest value: hot-seed0, hot-seed1, late" in told
    assert "http" not in re.sub(r"base64,[^\"]*", "", (out / "report.html").read_text())
    assert (out / "curves.png").is_file()


def test_groups_are_pooled_and_left_out(tmp_path, capsys):
    arms = {"plain": [0.5, 0.51, 0.49, 0.5], "new": [0.58, 0.6, 0.1, 0.59], "$_$[dev]": [0.5, 0.51]}
    rows = [f"{group},{arm},{seed},{x}" for group in ("x", "y\x7f", "z $_$")
            for arm, values in arms.items() for seed, x in enumerate(values)]  # fmt: skip
    file = written(tmp_path, {"x.csv": "\n".join(["group,arm,seed,accuracy", *rows])})
    out = tmp_path / "out"
    assert main([str(file), "--json", "--out", str(out)]) == 0
    numbers = json.loads((out / "report.json").read_text())
    assert json.loads(capsys.readouterr().out.partition(str(tmp_path))[0]) == numbers
    pooled = numbers["pooled"][0]
    assert [share["arm"] for share in pooled["shares"]] == [[3, 4]] * 3
    assert pooled["means"]["difference"] == pytest.approx(0.09)
    assert {*pooled["without"]} == {"x", "y\x7f", "z $_$"} and pooled["odds"]["odds_ratio"] == 0
    text = (out / "REPORT.md").read_text().replace("\\", "")
    assert "9 of 12 against 12 of 12" in text and "| x, yx7f, z $_$ |" in text
    assert (out / "runs.png").is_file() and not (out / "curves.png").exists()
    assert main([str(file), "--reference", "plain"]) == 0
    shown = capsys.readouterr().out
    assert "+0.090" in shown and "$_$[dev]" in shown and "\\[" not in shown


def test_a_run_without_the_metric_is_named(tmp_path, capsys):
    text = "arm,seed,accuracy,loss\na,0,0.5,1\na,1,0.6,1\nb,0,,1\nb,1,0.5,1\nb,2,NA,"
    assert main([str(written(tmp_path, {"x.csv": text}))]) == 0
    assert "left out, as without a finite accuracy: b-seed0, b-seed2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,x\na_0,0.5\na_1,0.5\nb_0,0.6", "each of the 3 runs is read as an arm of its own"),
        ("experiment,seed,x\na,0,0.5\nb,0,0.5", "no arm is in two groups"),
        ("arm,seed,x\na,0,0.5\na,1,0.5", "gains over 0.000 (no run logs a step 0; --base"),
        ("arm,seed,step,x\na,0,0,0.6\na,0,9,0.5", "the median run of a gains nothing over 0.600"),
        ("run,arm,step,x\nr,a,5,0.5\ns,a,5,0.4\ns,a,9,0.5", "runs end at steps 5 to 9"),
    ],
)
def test_what_was_probably_not_meant_is_said(text, sentence, tmp_path, capsys):
    assert main([str(written(tmp_path, {"x.csv": text}))]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_a_difference_of_two_groups_is_not_left_out_one_by_one():
    """The third group has one run of each arm, and so a share but no difference of means."""
    alike = [0.5, 0.51, 0.52, 0.53]
    runs = [
        run
        for group, n in {"a": 4, "b": 4, "c": 1}.items()
        for run in runs_of({"plain": alike[:n], "new": [x + 0.1 for x in alike[:n]]}, group)
    ]
    (pooled,) = judge_runs(runs, "x", "plain", Rules(threshold=0.3)).pooled
    assert pooled.means is not None and pooled.means.difference == pytest.approx(0.1)
    assert {name: means for name, (_, means) in pooled.without.items()} == dict.fromkeys("abc")


DATASETS = "arm,seed,dataset,step,x\na,0,one,1,0.5\na,0,one,2,0.5\na,0,two,1,0.2\na,0,two,2,0.5\n"


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("arm,seed,x\na,x,0.5\n", [], "seed is 'x'; it takes a whole number"),
        ("arm,seed,x\na,0.7,0.5\n", [], "seed is '0.7'; it takes a whole number"),
        ("arm,seed,x\na,0,0.5\n", ["--margin", "nan"], "--margin is nan; allowed: a positive"),
        ("run,metric,step,value\na\n", [], "line 2, names no metric"),
        ("run,metric,step\na,x,1\n", [], "no column 'value'"),
        ("Wall time,Step,Value\n1\n", [], "line 2 has a row without a step"),
        ("arm,seed,x\na,0,0.5\na,0,0.6\n", [], "the same arm 'a' and the same seed"),
        ("arm,seed,x,y\na,0,0.5,1\n", [], "several metrics (choose with --metric); they have x, y"),
        ("arm,seed,x\na,0,0.5\n", ["--metric", "z"], "have no metric 'z'; they have x"),
        ("arm,seed,x\na,0,0.5\n", ["--reference", "b"], "--reference is 'b'; the arms are a"),
        ("arm,seed,x\na,0,0.5\n", ["--group", "lab"], "has no column 'lab'; it has arm, seed, x"),
        ("name,x\na,0.5\n", ["--names", "("], "is not a regular expression"),
        ("name,x\na,0.5\n", ["--names", "b"], "finds no arm in the name 'a'"),
        ("arm,x,x\na,0,0.5\n", [], "has two columns 'x'"),
        ("arm,x\na,50.5\n", ["--questions", "9"], "a run of 'a' ends at 50.5; give shares"),
        ("arm,seed,x\na,0,no\n", [], "has no logged number"),
        ("arm,seed,x\na,0,inf\n", [], "x.csv has a finite number"),
        ("arm,seed,score\na,0,0.5\na,1,0.6\na,2,lost\n", [], "line 4: score is 'lost'"),
        ('arm,seed,score\na,0,"0,5"\n', [], "score is '0,5', which is no number"),
        ("name,epoch,x\na,1,0.5\na,2,0.6\n", [], "2 lines of 'a' and no column of steps"),
        (DATASETS, [], "'a-0' has a second value of 'x' at step 1, of another 'dataset'"),
        ("arm,seed,eval_loss\na,0,0.5\n", [], "'eval_loss' is better where it is lower"),
        ("arm,seed,valLoss\na,0,0.5\n", [], "'valLoss' is better where it is lower"),
        ("arm,seed,eval-mae\na,0,0.5\n", [], "'eval-mae' is better where it is lower"),
        ("arm,seed,x\na,0,-0.5\n", [], "that of 'a' ends at -0.5; give --base"),
        ("arm,seed,x\na,0,0.5\n", ["--threshold", "inf"], "'inf' is no number"),
        ("arm;seed;x\na;0;0.5\n", [], "separates its columns by ';', not by ','"),
        ("", [], "is not a CSV file with a header (it is empty)"),
        ("arm,x\na,0.5\n", ["--out", __file__], "is a file; name a folder"),
    ],
)
def test_refused_in_one_sentence(tmp_path, capsys, text, options, sentence):
    file = written(tmp_path, {"x.csv": text})
    assert main([str(file), *options]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown and shown.count("\n") == 1


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    file = written(tmp_path, {"a.json": "[1, 2]"})
    for path, sentence in ((file, "other things than objects"), (tmp_path / "empty", "no log of")):
        with pytest.raises(ConfigurationError, match=sentence):
            read_runs([path])
