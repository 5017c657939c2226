"""Several values for one setting are answered with a study, which is run as it is printed."""

import subprocess

import pytest

from trl_ablate.cli.main import main
from trl_ablate.cli.several import refuse_several
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.study.definition import load_study
from trl_ablate.study.resolution import resolve_plan


@pytest.mark.parametrize(
    ("words", "seeds", "arms"),
    [
        (["--learning_rate", "1e-5", "3e-5"], (0, 1, 2),
         [{"learning_rate": 1e-5}, {"learning_rate": 3e-5}]),
        (["--baseline", "none", "group_mean", "--beta", "0.0", "0.1", "--arm", "x y"], (0, 1, 2),
         [{"baseline": b, "beta": k} for b in ("none", "group_mean") for k in (0.0, 0.1)]),
        (["--seed", "3", "4", "--stop", "a", "b", "--profile", "rtx4090"], (3, 4), [{}]),
    ],
)  # fmt: skip
def test_the_study_that_is_printed_compares_the_values(
    tmp_path, monkeypatch, capsys, words, seeds, arms
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "std_dev_off", *words, "--grpo_steps", "4"]) == 2
    _, pasted, _ = capsys.readouterr().err.split("\n\n")
    *written, command = pasted.splitlines()
    subprocess.run(["sh", "-e"], input="\n".join(written), text=True, check=True)
    assert command == "trl-ablate study plan my_study"
    study = load_study(tmp_path / "my_study" / "study.yaml")
    plan = resolve_plan(study)
    assert plan.profile == ("rtx4090" if "--profile" in words else "miniature")
    found = [load_recipe(arm.recipe, study.profile, {**study.overrides, **arm.overrides}).settings
             for arm in study.arms]  # fmt: skip
    scale = load_recipe("grpo", study.profile).task.learning_rate_scale
    for settings, expected in zip(found, arms, strict=True):
        assert settings["grpo_steps"] == 4 and settings["scale_rewards"] == "none"
        for key, value in expected.items():
            assert settings[key] == pytest.approx(value * (scale if "rate" in key else 1))
    assert study.seeds == seeds


@pytest.mark.parametrize("words", [["--stop", "a", "b"], ["--learning_rate", "1e-5"]])
def test_lists_and_single_values_are_not_several(words):
    refuse_several("std_dev_off", "auto", words)


def test_a_wrong_value_among_several_is_still_named(capsys):
    assert main(["train", "std_dev_off", "--learning_rate", "1e-5", "high"]) == 2
    assert "learning_rate is the list [1e-05, 'high']; it takes a number" in capsys.readouterr().err
