"""Studies with `factors` and `tune`: their files, the proof, illegal cells, the printed plan."""

from itertools import product
from pathlib import Path

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.cli.study import main
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.identity import portable
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import run_id, save_plan, saved_plan
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.schedule import next_runs

HEAD = "question: q\nseeds: [0, 1]\nprofile: miniature\n"
FACTORS = HEAD + "factors: {scale_rewards: [group, none], learning_rate: [1e-5, 3e-5]}\n"
ILLEGAL = HEAD + "factors: {surrogate: [clip, no_clip], delta: [null, 4.0], beta: [0.0, 0.1]}\n"
TUNE = HEAD + "arms: [grpo.yaml, std_dev_off.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "study.yaml").write_text(text)
        return tmp_path / "study.yaml"

    return write


def test_a_cell_is_the_recipe_with_its_levels_and_nothing_else_differs(write):
    plan = resolve_plan(load_study(write(FACTORS)))
    assert [arm.name for arm in plan.arms] == [
        "group--1e-05", "group--3e-05",
        "none--1e-05", "none--3e-05",
    ]  # fmt: skip
    levels = list(product(("group", "none"), (1e-5, 3e-5)))
    for arm, (scale, rate) in zip(plan.arms, levels, strict=True):
        assert arm.values["scale_rewards"] == scale
        assert arm.values["learning_rate"] == pytest.approx(20 * rate)  # scaled by the profile
        assert set(arm.declared) == {"scale_rewards", "learning_rate"}
        alone = load_recipe(
            SHIPPED / "grpo.yaml", "miniature", {"scale_rewards": scale, "learning_rate": rate}
        )
        assert arm.runs[0].id == run_id(portable(alone.to_dict()["settings"], {}), 0)
        words = arm.runs[1].words
        resolved = load_recipe(words[0], overrides=words[1:]).to_dict()["settings"]
        assert (
            run_id(portable(resolved, {}), 1) == arm.runs[1].id
        )  # the settings that the process resolves
    assert plan.compared > 200


def test_a_design_shares_the_runs_of_studies_with_arms(write):
    """grpo.yaml gives both keys: the cell of its own values has the run ids of the arm `grpo`."""
    text = FACTORS.replace("[1e-5, 3e-5]", "[3e-5, 1e-5]").replace("miniature", "miniature-sums")
    cells = resolve_plan(load_study(write(text)))
    arms = resolve_plan(load_study(SHIPPED / "studies" / "std_dev" / "study.yaml"))
    assert cells.arms[0].runs[0].id == arms.arms[0].runs[0].id == "152919170b-seed0"


def test_a_level_that_is_the_default_shares_the_runs_of_an_arm_without_it(write):
    """grpo.yaml does not mention group_filter, whose default is none; zero_var_resample does."""
    text = HEAD + "factors: {group_filter: [none, resample], num_generations: [8, 4]}\n"
    cells = resolve_plan(load_study(write(text))).arms
    text = HEAD + "arms: [grpo.yaml, zero_var_resample.yaml, group_size_4.yaml]\n"
    arms = resolve_plan(load_study(write(text))).arms
    assert [cells[place].runs[1].id for place in (0, 2, 1)] == [arm.runs[1].id for arm in arms]
    assert [cell.values["group_filter"] for cell in cells] == ["none"] * 2 + ["resample"] * 2


def test_a_default_that_the_study_replaces_stays_a_level(write):
    text = HEAD + "recipe: zero_var_resample.yaml\nfactors: {group_filter: [none, resample]}\n"
    cells = resolve_plan(load_study(write(text))).arms
    assert [cell.values["group_filter"] for cell in cells] == ["none", "resample"]


def test_illegal_cells_are_excluded_and_named(write, capsys):
    path = write(ILLEGAL)
    plan = resolve_plan(load_study(path))
    assert plan.design is not None
    assert len(plan.arms) == len(plan.design.cells) == 6
    assert set(plan.design.excluded) == {
        "no_clip--4--0", "no_clip--4--0.1",
    }  # fmt: skip
    assert all("does not limit the ratio" in why for why in plan.design.excluded.values())
    assert main(["plan", str(path), "--runs", str(path.parent / "runs")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "factors: surrogate (2) × delta (2) × beta (2): 6 cells" in printed
    assert "excluded: no_clip--4--0: surrogate 'no_clip' does not limit" in printed
    assert "12 runs: 0 done, 12 to do" in printed


def test_a_fraction_prints_its_defining_relation_and_aliases(write, capsys):
    path = write(
        HEAD + "factors: {scale_rewards: [group, none], beta: [0.0, 0.1], "
        "length_norm: [mean, constant], temperature: [1.0, 0.7]}\nfraction: 1/2\n"
    )
    assert main(["plan", str(path), "--runs", str(path.parent / "runs")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "fraction 1/2: 8 cells" in printed
    assert "relation: I = scale_rewards × beta × length_norm × temperature" in printed
    assert "scale_rewards × beta = length_norm × temperature" in printed
    assert "16 runs: 0 done" in printed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FACTORS + "arms: [grpo.yaml]\n", "has both `arms` and `factors`"),
        (HEAD + "arms: [grpo.yaml]\nfraction: 1/2\n", "'fraction' applies to `factors` only"),
        (HEAD + "arms: [grpo.yaml]\nrecipe: grpo.yaml\n", "'recipe' applies to `factors` only"),
        (HEAD + "factors: {seed: [1, 2]}\n", "'seed' cannot be overridden"),
        (HEAD + "factors: {beta: 0.1}\n", "factors is the mapping {'beta': 0.1}; it takes a mapp"),
        (FACTORS + "overrides: {learning_rate: 1e-4}\n", "is a factor and an override"),
        (FACTORS + "recipe: gropo.yaml\n", "recipe 'gropo.yaml' does not exist"),
        (FACTORS + "tune: {learning_rate: [1, 2]}\n", "tune replaces 'learning_rate'"),
        (TUNE + "overrides: {learning_rate: 1e-4}\n", "tune replaces 'learning_rate'"),
        (HEAD + "arms: [grpo.yaml]\ntune: {seeds: 2}\n", "tune has the settings none"),
        (HEAD + "arms: [grpo.yaml]\ntune: {beta: [0.1, 0.2], by: median}\n",
         "tune: by is the text 'median'; it takes one of final, best, auc"),
        (HEAD + "arms: [grpo.yaml]\ntune: {output_dir: [a, b]}\n", "cannot be overridden"),
    ],
)  # fmt: skip
def test_what_is_no_study(write, text, complaint):
    with pytest.raises(ConfigurationError) as raised:
        load_study(write(text))
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEAD + "factors: {scale_rewards: [group, nnoe]}\n",
         "scale_rewards nnoe is refused in every cell: command line: scale_rewards is the"),
        (HEAD + "factors: {scale_rewads: [group, none]}\n",
         "the first level of every factor, the reference, is refused:"),
        (HEAD + "factors: {surrogate: [no_clip, clip], delta: [4.0, null]}\n",
         "the reference, is refused: surrogate 'no_clip' does not limit"),
        (HEAD + "arms: [grpo.yaml, lr_1e-5.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n",
         "tune replaces the 'learning_rate' that lr_1e-5.yaml declares"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned(write, text, complaint):
    with pytest.raises(ConfigurationError) as raised:
        resolve_plan(load_study(write(text)))
    assert complaint in str(raised.value)


def test_candidates_have_tuning_seeds_first_and_the_studys_after_them(write, capsys):
    path = write(TUNE.replace("miniature", "miniature-sums"))
    plan = resolve_plan(load_study(path))
    assert plan.tuning is not None
    assert plan.tuning.arms["std_dev_off"] == [
        "std_dev_off--learning_rate_1e-05", "std_dev_off--learning_rate_3e-05",
    ]  # fmt: skip
    for arm in plan.arms:
        assert [run.seed for run in arm.runs] == [10_000, 10_001, 0, 1]
        assert "learning_rate" in arm.declared
    assert "152919170b-seed0" in plan.runs()  # shared with the study std_dev
    assert len(next_runs(plan, {})) == 8
    assert main(["plan", str(path), "--runs", str(path.parent / "runs")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "tuning: 4 runs of each of 2 arms (2 values of learning_rate, 2 tuning" in printed
    assert "12 to 14 runs in all" in printed and "14 runs: 0 done, 14 to do" in printed


def test_the_first_array_job_has_the_trials(write, capsys):
    path = write(TUNE)
    words = ["run", str(path), "--runs", str(path.parent / "runs"), "--engine", "slurm"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "#SBATCH --array=0-7\n" in captured.out and "-seed10001" in captured.out
    assert "more runs follow from these outcomes: then run this command again" in captured.err


@pytest.mark.parametrize("text", [FACTORS, ILLEGAL, TUNE], ids=["factors", "illegal", "tune"])
def test_the_kept_plan_has_the_design_and_the_tuning(write, text):
    study = load_study(write(text))
    plan, plans = resolve_plan(study), study.path.parent / "studies"
    save_plan(plan, study, plans)
    assert saved_plan(study, plans) == plan


def test_factors_can_be_tuned(write):
    text = ILLEGAL + "tune: {learning_rate: [1e-5, 3e-5], seeds: 1, halving: true}\n"
    plan = resolve_plan(load_study(write(text)))
    assert plan.design is not None and plan.tuning is not None
    assert len(plan.design.cells) == len(plan.tuning.arms) == 6 and len(plan.arms) == 12
    assert len(plan.design.excluded) == 2
