"""From study files to plans: the proof that arms differ only where declared, cells, ids."""

import re
from itertools import product
from pathlib import Path

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.cli.study import main
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.identity import portable
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import identity, run_id, save_plan, saved_plan
from trl_ablate.study.resolution import resolve_plan

STUDIES = sorted((SHIPPED / "studies").glob("*/study.yaml"))
GRPO = "152919170b-seed0"
"""The first run of the recipe `grpo` on sums: a finished run stays finished when code is moved."""

SMALL = "question: q\nseeds: [0, 1]\nprofile: miniature\n"
FACTORS = SMALL + "factors: {scale_rewards: [group, none], learning_rate: [1e-5, 3e-5]}\n"
ILLEGAL = SMALL + "factors: {surrogate: [clip, no_clip], delta: [null, 4.0], beta: [0.0, 0.1]}\n"
TUNE = SMALL + "arms: [grpo.yaml, std_dev_off.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n"


def planned(path, **how):
    return resolve_plan(load_study(path), **how)


def shipped(study: str):
    return planned(SHIPPED / "studies" / study / "study.yaml")


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


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_shipped_study_is_proven(path):
    """Those with committed runs also give their committed numbers: `tests/e2e/test_findings.py`."""
    study = load_study(path)
    plan = resolve_plan(study)
    assert plan.study == path.parent.name
    assert plan.profile.startswith(("miniature", "smollm2", "h100"))
    at_each_level = len(plan.arms) // 2 if plan.design else 1
    assert len(study.seeds) * at_each_level >= 3
    assert all(arm.grpo_steps > 0 and arm.evaluations > 0 for arm in plan.arms)
    assert len({arm.evaluations for arm in plan.arms}) == 1


def test_the_two_names_of_one_recipe_are_other_runs():
    plan = shipped("aa")
    first, again = ({run.id.partition("-")[0] for run in arm.runs} for arm in plan.arms)
    assert first == again and len(plan.runs()) == 3 + 3
    assert not any(arm.declared for arm in plan.arms)
    ((size, dataset),) = plan.miniatures
    assert (round(size, 2), dataset) == (0.37, "miniature/sums")


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
    assert [arm.declared for arm in planned(study).arms] == [{"beta": 0.01}, {"beta": 0.02}]
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


def test_overrides_reach_every_arm_and_places_are_not_compared(write, printed):
    """Of eight GRPO steps, an evaluation is after 3, 6, 8, or after 2, 4, 6, 8; and before all."""
    study = write(
        SMALL + "overrides: {grpo_steps: 8, max_grad_norm: 0.5}\n"
        "arms: {a: mine.yaml, b: {recipe: mine.yaml, overrides: {eval_steps: 3}},\n"
        "  c: {recipe: mine.yaml, overrides: {eval_steps: 0.25}}}\n",
        mine="extends: grpo.yaml\nreport_to: none\noutput_dir: elsewhere\n",
    )
    plan = planned(study)
    assert [arm.grpo_steps for arm in plan.arms] == [8] * 3
    assert [arm.evaluations for arm in plan.arms[1:]] == [3 + 1, 4 + 1]
    assert "differ in their evaluations: a 2, b 4, c 5; eval_delay" in printed("plan", study)
    assert [arm.declared for arm in plan.arms] == [{}, {"eval_steps": 3}, {"eval_steps": 0.25}]
    for arm in plan.arms:
        assert {"--grpo_steps=8", "--max_grad_norm=0.5"} <= set(arm.runs[0].words)
    in_epochs = "overrides: {grpo_steps: null, num_train_epochs: 1, eval_steps: 0.25}\n"
    assert planned(write(SMALL + in_epochs + "arms: [grpo.yaml]\n")).arms[0].evaluations == 1
    run = plan.arms[1].runs[1]
    assert run.id == id_of(run.words[0], run.words[1:], 1)


BROKEN = {
    "column": ("template: ask.txt", "ask.txt", "{question} {hint}", "names the column 'hint'"),
    "of the Hub": ("template: ask.txt\ndataset: org/data", "ask.txt", "Answer!",
                   "does not contain {question}"),
    "eval set": ("eval_sets: {mine: {dataset: ask.csv}}", "ask.csv", "{question}", "ask.csv"),
    "reward": ("reward_funcs: ['absent.py:score']", "", "",
               "reward_funcs: there is no file absent.py"),
    "tool": ("tools: ['ask.py:search']", "ask.py", "def search(:",
             "cannot be imported: SyntaxError"),
    "few": ("dataset: ask.jsonl", "ask.jsonl", '{"question": "1+1", "answer": "2"}',
            "there are 1 questions"),
    "no evaluation": ("eval_strategy: 'no'", "", "", "a run logs no eval_reward"),
    "quantized": ("load_in_4bit: true", "", "", "load_in_4bit needs use_peft"),
}  # fmt: skip
"""Settings, a file that they name, its content, and what is refused."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_refuses_what_its_runs_would_refuse(write, tmp_path, capsys, case):
    settings, file, content, said = BROKEN[case]
    (tmp_path / (file or "unused")).write_text(content)
    broken = f"extends: grpo.yaml\nreward: r1_zero\n{settings}\n"
    study = write(SMALL + "arms: [grpo.yaml, broken.yaml]\n", broken=broken)
    assert main(["plan", str(study), "--runs", str(tmp_path / "runs")]) == 2
    assert re.search(f"error: arm 'broken': .*{said}", capsys.readouterr().err)
    assert planned(study).arms  # for the report of runs that are done


def test_a_primary_metric_that_no_evaluation_logs_is_refused(write, capsys):
    def plan(metric: str) -> int:
        study = write(SMALL + f"arms: [grpo.yaml]\nprimary_metric: {metric}\n")
        return main(["plan", str(study), "--runs", str(study.parent / "runs")])

    assert plan("eval_answer_rewrad") == 2
    assert "no evaluation logs; did you mean 'eval_answer_reward'?" in capsys.readouterr().err
    assert plan("eval_pass@8") == 2  # of one sample
    for lower in ("loss", "eval_truncated", "eval_reward_stderr", '""'):
        assert plan(lower) == 2
        assert "name a metric that is better where it is higher" in capsys.readouterr().err
    assert plan("eval_answer_reward/level=3") == plan("eval_answer_reward") == 0


REWARD = "{path: 'reward.py:score', kwargs: {file: x.py}}"


@pytest.mark.parametrize(
    ("recipe", "profile"), [("mine", "own"), ("mine", "profiles/own.yaml"), ("grpo", "own.yaml")]
)
def test_a_study_does_not_depend_on_where_its_command_is_typed(
    tmp_path, monkeypatch, recipe, profile
):
    task = tmp_path / "task"
    (task / "profiles").mkdir(parents=True)
    for file in ("own.yaml", "profiles/own.yaml"):
        (task / file).write_text("use_cpu: true\n")
    (task / "mine.yaml").write_text("extends: grpo.yaml\nbeta: 0.1\n")
    (task / "study.yaml").write_text(
        f"question: q\nseeds: [0]\nprofile: {profile}\narms: {{a: {recipe}.yaml, "
        f"b: {{recipe: {recipe}.yaml, overrides: {{reward_funcs: [{REWARD}]}}}}}}\n"
    )
    for place in (tmp_path, task):
        code = f"def score(completions, **kwargs): return {place.name!r}\n"
        (place / "reward.py").write_text(code)
    plans = []
    for place, file in ((tmp_path, "task/study.yaml"), (task, "study.yaml")):
        monkeypatch.chdir(place)
        plans.append(planned(Path(file), to_run=True))
    assert plans[0].runs().keys() == plans[1].runs().keys()
    for plan in plans:
        rewards = [arm.values["reward_funcs"] for arm in plan.arms]
        assert rewards == [None, [{"path": f"{task}/reward.py:score", "kwargs": {"file": "x.py"}}]]
        run = plan.arms[1].runs[0]
        assert run.id == id_of(run.words[0], run.words[1:])


def test_the_saved_plan_of_a_tuned_design_comes_back(write):
    study = load_study(write(ILLEGAL + "tune: {learning_rate: [1e-5, 3e-5], halving: true}\n"))
    plans = study.path.parent / "studies"
    assert saved_plan(study, plans) is None
    plan = resolve_plan(study)
    assert plan.design is not None and plan.tuning is not None
    assert len(plan.design.cells) == len(plan.tuning.arms) == 6 and len(plan.arms) == 12
    assert {*plan.design.excluded} == {"no_clip--4--0", "no_clip--4--0.1"}
    save_plan(plan, study, plans)
    assert saved_plan(study, plans) == plan


def test_a_saved_plan_does_not_survive_an_edit_of_its_files(tmp_path):
    texts = {
        "task/study.yaml": f"question: q\nseeds: [0]\nprofile: {tmp_path}/gpu.yaml\n"
        "arms: {a: mine.yml, b: {recipe: mine.yml, overrides: {beta: 0.1}}}\n"
        "against: {b: a}\nnotes: [One rate for all.]\nexpect: {b: -0.03}\n",
        "task/mine.yml": "extends: ../base.yaml\n",
        "base.yaml": "use_cpu: true\nbf16: false\n",
        "gpu.yaml": "grpo_steps: 2\n",
    }
    (tmp_path / "task").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    study = load_study(tmp_path / "task" / "study.yaml")
    save_plan(plan := resolve_plan(study), study, tmp_path)
    assert (plan.notes, plan.against, plan.expect) == (study.notes, study.against, study.expect)
    for name, text in texts.items():
        assert saved_plan(study, tmp_path) == plan
        (tmp_path / name).write_text(text + "# edited\n")
        assert saved_plan(study, tmp_path) is None, name
        (tmp_path / name).write_text(text)


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
    text = SMALL + "recipe: zero_var_resample.yaml\nfactors: {group_filter: [none, resample]}\n"
    cells = planned(write(text)).arms  # a default that the recipe replaces
    assert [cell.values["group_filter"] for cell in cells] == ["none", "resample"]
    # grpo.yaml gives both keys: the cell of its own values has the run ids of the arm `grpo`
    text = FACTORS.replace("[1e-5, 3e-5]", "[3e-5, 1e-5]").replace("miniature", "miniature-sums")
    assert planned(write(text)).arms[0].runs[0].id == GRPO


def test_a_design_prints_its_levels_what_it_cannot_separate_and_excluded_cells(write, printed):
    path = write(
        SMALL + "factors: {surrogate: [clip, no_clip], delta: [null, 4.0], "
        "learning_rate: [1e-5, 3e-5]}\nfraction: 1/2\n"
    )
    design = planned(path).design
    assert design is not None and len(design.cells) == 3
    assert set(design.excluded) == {"no_clip--4--1e-05"}
    text = printed("plan", path)
    assert "learning_rate: 1e-05 (here 0.0002), 3e-05 (here 0.0006)" in text
    assert "surrogate (2) × delta (2) × learning_rate (2), fraction 1/2: 3 cells" in text
    assert "relation: I = −surrogate × delta × learning_rate; not separable: surrogate = " in text
    assert "excluded: no_clip--4--1e-05: surrogate 'no_clip' does not limit the ratio" in text
    assert "6 runs: 0 done, 6 to do" in text


def test_candidates_have_tuning_seeds_first_and_the_studys_after_them(write, printed):
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
    text = printed("plan", path)
    assert "tuning: 4 runs of each of 2 arms (2 values of learning_rate, 2 tuning" in text
    assert "12 to 14 runs in all" in text and "14 runs: 0 done, 14 to do" in text
    assert "#SBATCH --array=0-7 " in printed("run", path, "--engine", "slurm")
