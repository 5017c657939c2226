"""From study files to plans: the proof that arms differ only where declared, cells, ids."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.support.synthetic_study import make_plan
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.cli.study import main
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.identity import portable
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import kept
from trl_ablate.study.planned import identity, in_order, run_id, save_plan, saved_plan
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.runs import next_runs

STUDIES = sorted((SHIPPED / "studies").glob("*/study.yaml"))
KEPT = sorted(SHIPPED.glob("studies/*/runs.parquet"))
GRPO = "152919170b-seed0"
"""The first run of the recipe `grpo` on sums: a finished run stays finished when code is moved."""

SMALL = "question: q\nseeds: [0, 1]\nprofile: miniature\n"
FACTORS = SMALL + "factors: {scale_rewards: [group, none], learning_rate: [1e-5, 3e-5]}\n"
ILLEGAL = SMALL + "factors: {surrogate: [clip, no_clip], delta: [null, 4.0], beta: [0.0, 0.1]}\n"
TUNE = SMALL + "arms: [grpo.yaml, std_dev_off.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n"


def shipped(study: str):
    return planned(SHIPPED / "studies" / study / "study.yaml")


def planned(path, **how):
    return resolve_plan(load_study(path), **how)


def id_of(recipe, overrides=(), seed: int = 0) -> str:
    """The id of the run that a process resolves from these words."""
    found = load_recipe(recipe, overrides=overrides).to_dict()
    return run_id(identity(portable(found["settings"], found.get("files", {}))), seed)


@pytest.fixture
def printed(capsys):
    """What a command prints about a study."""

    def printed(command: str, path, *words: str) -> str:
        assert main([command, str(path), "--runs", str(path.parent / "runs"), *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    return printed


@pytest.mark.sample(6)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_shipped_study_is_proven(path):
    study = load_study(path)
    plan = resolve_plan(study)
    assert plan.study == path.parent.name
    assert plan.profile.startswith(("miniature", "smollm2", "h100"))
    at_each_level = len(plan.arms) // 2 if plan.design else 1
    assert len(study.seeds) * at_each_level >= 3
    assert all(arm.grpo_steps > 0 and arm.evaluations > 0 for arm in plan.arms)


@pytest.mark.sample(1)
@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_the_kept_runs_of_a_study_are_those_of_its_plan(file):
    planned = shipped(file.parent.name).runs()
    for run, each in kept(file).items():
        written = json.loads(each.settings)
        assert run in planned
        assert run.startswith(identity(portable(written["settings"], written.get("files", {}))))


def test_the_two_names_of_one_recipe_are_other_runs():
    plan = shipped("aa")
    runs = [{run.id for run in arm.runs} for arm in plan.arms]
    first, again = ({run.partition("-")[0] for run in ids} for ids in runs)
    assert first == again and not runs[0] & runs[1]
    assert not any(arm.declared for arm in plan.arms)


def test_the_identity_survives_the_disk_and_ignores_names(tmp_path):
    settings = load_recipe(SHIPPED / "dapo.yaml", "miniature").to_dict()["settings"]
    again = json.loads(json.dumps(settings, default=str))
    moved = {**again, "output_dir": str(tmp_path), "arm": "x", "study": "y", "seed": 7}
    assert identity(settings) == identity(again) == identity(moved)
    assert identity({**again, "epsilon": 0.3}) != identity(settings)


def test_arms_that_differ_where_they_do_not_declare_it_are_refused(write):
    base = "use_cpu: true\nbf16: false\nlearning_rate: 1.0e-5\ntemperature: {}\n"
    study = write(
        SMALL + "arms: [first.yaml, second.yaml]\n",
        one=base.format("1.0"),
        other=base.format("0.7"),
        first="extends: one.yaml\nbeta: 0.01\n",
        second="extends: other.yaml\nbeta: 0.02\n",
    )
    with pytest.raises(ConfigurationError, match="'first' and 'second' differ in 'temperature'"):
        planned(study)
    write(study.read_text(), second="extends: one.yaml\nbeta: 0.02\n")
    plan = planned(study)
    assert [arm.declared for arm in plan.arms] == [{"beta": 0.01}, {"beta": 0.02}]
    write(study.read_text(), second="extends: other.yaml\nbeta: 0.02\ntemperature: 0.7\n")
    plan = planned(study)
    assert plan.arms[1].declared == {"beta": 0.02, "temperature": 0.7}
    assert plan.arms[0].values == {"beta": 0.01, "temperature": 1.0}


def test_an_own_base_is_under_the_profile_and_an_arm_that_it_is_itself_is_not(write):
    study = write(
        SMALL + "arms: [first.yaml, second.yaml]\n",
        own="use_cpu: true\nbf16: false\ngrpo_steps: 3\n",
        first="extends: own.yaml\n",
        second="extends: own.yaml\nbeta: 0.02\n",
    )
    assert [arm.grpo_steps for arm in planned(study).arms] == [60, 60]
    alone = write(SMALL + "arms: [own.yaml]\n")
    assert [arm.grpo_steps for arm in planned(alone).arms] == [3]
    mixed = write(SMALL + "arms: [own.yaml, second.yaml]\n")
    with pytest.raises(ConfigurationError, match="'own' and 'second' differ in 'grpo_steps'"):
        planned(mixed)


def test_where_a_recipe_reports_to_is_nothing_that_a_study_compares(write):
    text = "extends: grpo.yaml\nreport_to: none\noutput_dir: elsewhere\n"
    study = write(SMALL + "arms: [a.yaml, b.yaml]\n", a=text, b=text + "scale_rewards: none\n")
    plan = planned(study)
    assert [arm.declared for arm in plan.arms] == [{}, {"scale_rewards": "none"}]


def test_overrides_reach_every_arm(write):
    study = write(
        SMALL + "arms: {a: grpo.yaml, b: {recipe: grpo.yaml, overrides: {temperature: 0.7}}}\n"
        "overrides: {grpo_steps: 8, max_grad_norm: 0.5}\n"
    )
    plan = planned(study)
    assert [arm.grpo_steps for arm in plan.arms] == [8, 8]
    assert [arm.declared for arm in plan.arms] == [{}, {"temperature": 0.7}]
    for arm in plan.arms:
        assert {"--grpo_steps=8", "--max_grad_norm=0.5"} <= set(arm.runs[0].words)
    run = plan.arms[1].runs[1]
    assert run.id == id_of(run.words[0], run.words[1:], 1)


BROKEN = {
    "column": ("template: ask.txt\n", "{question} {hint}", "names the column 'hint'"),
    "no question": ("template: ask.txt\n", "Answer!", "does not contain {question}"),
    "Jinja": ("template: ask.jinja\n", "{% if question %}", "is not a Jinja template"),
    "of the Hub": (
        "template: ask.txt\ndataset: org/data\n", "Answer!", "does not contain {question}"
    ),
    "eval set": (
        "template: ask.txt\neval_sets: {mine: {dataset: ask.csv}}\n", "{question}", "ask.csv"
    ),
    "no template": ("template: absent.txt\n", "", "there is no template file absent.txt"),
    "reward": ("reward_funcs: ['absent.py:score']\n", "",
               "reward_funcs: there is no file absent.py"),
    "tool": ("tools: ['ask.py:search']\n", "def search(:", "cannot be imported: SyntaxError"),
    "few": ("dataset: ask.jsonl\n", '{"question": "1+1", "answer": "2"}', "there are 1 questions"),
    "bad row": ("dataset: ask.jsonl\n", '{"question": 3}', "line 1"),
    "no evaluation": ("eval_strategy: 'no'\n", "", "a run logs no eval_reward"),
    "quantized": ("load_in_4bit: true\n", "", "load_in_4bit needs use_peft"),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_refuses_what_its_runs_would_refuse(write, tmp_path, case):
    settings, content, said = BROKEN[case]
    name = next((word.strip("'[]}{:").partition(":")[0] for word in settings.split()
                 if word.strip("'[]}").startswith("ask.")), "unused")  # fmt: skip
    (tmp_path / name).write_text(content)
    broken = f"extends: grpo.yaml\nreward: r1_zero\n{settings}"
    study = write(SMALL + "arms: [grpo.yaml, broken.yaml]\n", broken=broken)
    with pytest.raises(ConfigurationError, match=f"arm 'broken': .*{said}"):
        planned(study, to_run=True)
    assert main(["plan", str(study), "--runs", str(tmp_path / "runs")]) == 2
    assert planned(study).arms  # for the report of runs that are done


OWN = """\
question: Why?
arms: {a: mine.yaml, b: {recipe: mine.yaml, overrides: {reward_funcs: ["reward.py:score"]}}}
seeds: [0]
"""


@pytest.mark.parametrize(
    ("recipe", "profile"),
    [
        ("profile: miniature\n", ""),
        ("profile: own\n", ""),
        ("", "profile: own\n"),
        ("", "profile: profiles/own.yaml\n"),
    ],
)
def test_files_and_profiles_are_those_of_the_arms_not_of_their_base(
    tmp_path, monkeypatch, recipe, profile
):
    task = tmp_path / "task"
    (task / "profiles").mkdir(parents=True)
    (task / "profiles" / "own.yaml").write_text("use_cpu: true\n")
    (task / "reward.py").write_text("def score(completions, **kwargs): return [0.0]\n")
    (task / "mine.yaml").write_text(f"extends: grpo.yaml\nbeta: 0.1\n{recipe}")
    (task / "study.yaml").write_text(OWN + profile)
    monkeypatch.chdir(tmp_path)
    plan = planned(task / "study.yaml")
    assert [arm.values["reward_funcs"] for arm in plan.arms] == [None, [f"{task}/reward.py:score"]]


def test_a_study_does_not_depend_on_where_its_command_is_typed(tmp_path, monkeypatch):
    (tmp_path / "task").mkdir()
    (tmp_path / "task/own.yaml").write_text("use_cpu: true\n")
    (tmp_path / "task/study.yaml").write_text(
        OWN.replace("mine.yaml", "grpo.yaml") + "profile: own.yaml\n"
    )
    for place in (tmp_path, tmp_path / "task"):
        (place / "reward.py").write_text(
            f"def score(completions, **kwargs): return {place.name!r}\n"
        )
    plans = []
    for place, file in ((tmp_path, "task/study.yaml"), (tmp_path / "task", "study.yaml")):
        monkeypatch.chdir(place)
        plans.append(planned(Path(file), to_run=True))
    assert plans[0] == plans[1]
    words = plans[0].arms[1].runs[0].words
    profile, reward = words[2], next(word for word in words if "reward.py" in word)
    assert profile == f"{tmp_path}/task/own.yaml" and f"{tmp_path}/task/reward.py" in reward
    assert plans[0].arms[1].runs[0].id == id_of(words[0], words[1:])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SMALL + "arms: [grpo.yaml, lr_1e-5.yaml]\noverrides: {learning_rate: 1e-5}\n",
         "'learning_rate' replaces what arm 'lr_1e-5'"),
        (SMALL + "arms: [grpo.yaml, lr_1e-5.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n",
         "tune replaces the 'learning_rate' that lr_1e-5.yaml declares"),
        (SMALL.replace("miniature", "auto") + "arms: [grpo.yaml, mine.yaml]\n",
         "beyond what they declare"),
        (SMALL + "factors: {scale_rewards: [group, nnoe]}\n",
         "scale_rewards nnoe is refused in every cell: command line: scale_rewards is the"),
        (SMALL + "factors: {scale_rewads: [group, none]}\n",
         "the first level of every factor, the reference, is refused:"),
        (SMALL + "factors: {surrogate: [no_clip, clip], delta: [4.0, null]}\n",
         "the reference, is refused: surrogate 'no_clip' does not limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned(write, text, complaint):
    """`mine` has a profile of its own, which it does not declare."""
    file = write(text, mine="extends: grpo.yaml\nprofile: rtx4090\nbeta: 0.1\n")
    with pytest.raises(ConfigurationError) as raised:
        planned(file)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        SMALL + "arms: [grpo.yaml, mine.yaml]\nagainst: {mine: grpo}\nnotes: [One rate for all.]\n"
        "expect: {mine: -0.03}\n",
        FACTORS, ILLEGAL, TUNE,
    ],
    ids=["arms", "factors", "illegal", "tune"],
)  # fmt: skip
def test_the_kept_plan_holds_while_its_files_do(write, text):
    study = load_study(write(text, mine="extends: grpo.yaml\nbeta: 0.1\n"))
    plans = study.path.parent / "studies"
    assert saved_plan(study, plans) is None
    plan = resolve_plan(study)
    assert (plan.notes, plan.against, plan.expect) == (study.notes, study.against, study.expect)
    save_plan(plan, study, plans)
    assert saved_plan(study, plans) == plan
    if "mine" in text:
        write(text, mine="extends: grpo.yaml\nbeta: 0.2\n")
        assert saved_plan(study, plans) is None


@pytest.mark.parametrize("edited", ["task/mine.yml", "base.yaml", "gpu.yaml"])
def test_a_kept_plan_does_not_survive_an_edit_elsewhere(tmp_path, edited):
    profile = f"profile: {tmp_path / 'gpu.yaml'}"
    texts = {
        "task/mine.yml": "extends: ../base.yaml\n",
        "base.yaml": "use_cpu: true\nbf16: false\n",
        "gpu.yaml": "grpo_steps: 2\n",
        "task/study.yaml": SMALL.replace("profile: miniature", profile) + "arms: [mine.yml]\n",
    }
    (tmp_path / "task").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    study = load_study(tmp_path / "task" / "study.yaml")
    save_plan(plan := resolve_plan(study), study, tmp_path)
    assert saved_plan(study, tmp_path) == plan
    (tmp_path / edited).write_text(texts[edited] + "beta: 0.1\n")
    assert saved_plan(study, tmp_path) is None


def test_seeds_come_before_arms():
    """A study that is stopped early has all arms with fewer seeds, not fewer arms."""
    plan = make_plan({"a": {"top": 1}, "b": {"top": 2}, "same": {"top": 1}}, seeds=(0, 1))
    assert [(run.words[2], run.seed) for run in in_order(plan)] == [
        ("same", 0), ("b", 0), ("same", 1), ("b", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("eval_steps", "evaluations"), [("4", 3 + 1), ("0.25", 4 + 1), ("0.5", 2 + 1)]
)
def test_evaluations_are_foreseen_for_fractions_too(write, eval_steps, evaluations):
    """For ten GRPO steps: after 4, 8, 10; after 3, 6, 9, 10; after 5, 10; and before the first."""
    study = write(
        SMALL + f"arms: [grpo.yaml]\noverrides: {{grpo_steps: 10, eval_steps: {eval_steps}}}\n"
    )
    assert planned(study).arms[0].evaluations == evaluations


def test_a_plan_knows_whose_answers_it_gives():
    ((size, dataset),) = shipped("std_dev").miniatures
    assert (round(size, 2), dataset) == (0.37, "miniature/sums")


def test_a_cell_is_the_recipe_with_its_levels_and_nothing_else_differs(write):
    plan = planned(write(FACTORS))
    levels = list(product(("group", "none"), (1e-5, 3e-5)))
    assert [arm.name for arm in plan.arms] == [f"{scale}--{rate:g}" for scale, rate in levels]
    for arm, (scale, rate) in zip(plan.arms, levels, strict=True):
        assert arm.values["scale_rewards"] == scale
        assert arm.values["learning_rate"] == pytest.approx(20 * rate)  # scaled by the profile
        assert set(arm.declared) == {"scale_rewards", "learning_rate"}
        run = arm.runs[1]
        assert run.id == id_of(run.words[0], run.words[1:], 1)
    assert plan.compared > 200


def test_a_level_that_is_the_default_shares_the_runs_of_an_arm_without_it(write):
    """grpo.yaml does not mention group_filter, whose default is none; zero_var_resample does."""
    text = SMALL + "factors: {group_filter: [none, resample], num_generations: [8, 4]}\n"
    cells = planned(write(text)).arms
    text = SMALL + "arms: [grpo.yaml, zero_var_resample.yaml, group_size_4.yaml]\n"
    arms = planned(write(text)).arms
    assert [cells[place].runs[1].id for place in (0, 2, 1)] == [arm.runs[1].id for arm in arms]
    assert [cell.values["group_filter"] for cell in cells] == ["none"] * 2 + ["resample"] * 2
    text = SMALL + "recipe: zero_var_resample.yaml\nfactors: {group_filter: [none, resample]}\n"
    cells = planned(write(text)).arms  # a default that the recipe replaces
    assert [cell.values["group_filter"] for cell in cells] == ["none", "resample"]
    # grpo.yaml gives both keys: the cell of its own values has the run ids of the arm `grpo`
    text = FACTORS.replace("[1e-5, 3e-5]", "[3e-5, 1e-5]").replace("miniature", "miniature-sums")
    assert planned(write(text)).arms[0].runs[0].id == GRPO


def test_illegal_cells_are_excluded_and_named(write, printed):
    path = write(ILLEGAL)
    plan = planned(path)
    assert plan.design is not None
    assert len(plan.arms) == len(plan.design.cells) == 6
    assert set(plan.design.excluded) == {"no_clip--4--0", "no_clip--4--0.1"}
    assert all("does not limit the ratio" in why for why in plan.design.excluded.values())
    text = printed("plan", path)
    assert "factors: surrogate (2) × delta (2) × beta (2): 6 cells" in text
    assert "excluded: no_clip--4--0: surrogate 'no_clip' does not limit" in text
    assert "12 runs: 0 done, 12 to do" in text


def test_a_fraction_prints_its_levels_its_defining_relation_and_aliases(write, printed):
    path = write(
        SMALL + "factors: {scale_rewards: [group, none], learning_rate: [1e-5, 3e-5], "
        "length_norm: [mean, constant], temperature: [1.0, 0.7]}\nfraction: 1/2\n"
    )
    text = printed("plan", path)
    assert "learning_rate: 1e-05 (here 0.0002), 3e-05 (here 0.0006)" in text
    assert "fraction 1/2: 8 cells" in text and "16 runs: 0 done" in text
    assert "relation: I = scale_rewards × learning_rate × length_norm × temperature" in text
    assert "scale_rewards × learning_rate = length_norm × temperature" in text


def test_candidates_have_tuning_seeds_first_and_the_studys_after_them(write, printed, capsys):
    path = write(TUNE.replace("miniature", "miniature-sums"))
    plan = planned(path)
    assert plan.tuning is not None
    assert plan.tuning.arms["std_dev_off"] == [
        "std_dev_off--learning_rate_1e-05", "std_dev_off--learning_rate_3e-05",
    ]  # fmt: skip
    for arm in plan.arms:
        assert [run.seed for run in arm.runs] == [10_000, 10_001, 0, 1]
        assert "learning_rate" in arm.declared
    assert GRPO in plan.runs()
    assert len(next_runs(plan, {})) == 8
    text = printed("plan", path)
    assert "tuning: 4 runs of each of 2 arms (2 values of learning_rate, 2 tuning" in text
    assert "12 to 14 runs in all" in text and "14 runs: 0 done, 14 to do" in text
    assert main(["run", str(path), "--runs", str(path.parent / "runs"), "--engine", "slurm"]) == 0
    captured = capsys.readouterr()
    assert "#SBATCH --array=0-7\n" in captured.out and "-seed10001" in captured.out
    assert "more runs follow from these outcomes: then run this command again" in captured.err


def test_factors_can_be_tuned(write):
    text = ILLEGAL + "tune: {learning_rate: [1e-5, 3e-5], seeds: 1, halving: true}\n"
    plan = planned(write(text))
    assert plan.design is not None and plan.tuning is not None
    assert len(plan.design.cells) == len(plan.tuning.arms) == 6 and len(plan.arms) == 12
    assert len(plan.design.excluded) == 2
