"""Several values for one setting are answered with a study that compares them."""

import pytest

from trl_ablate.cli.main import main
from trl_ablate.cli.train import refuse_several
from trl_ablate.study.definition import load_study


@pytest.mark.parametrize(
    ("words", "seeds", "arms"),
    [
        (["--learning_rate", "1e-5", "3e-5"], (0, 1, 2), [{"learning_rate": 1e-5},
                                                          {"learning_rate": 3e-5}]),
        (["--baseline", "none", "group_mean", "--beta", "0.0", "0.1"], (0, 1, 2),
         [{"baseline": b, "beta": k} for b in ("none", "group_mean") for k in (0.0, 0.1)]),
        (["--seed", "3", "4", "--stop", "a", "b", "--profile", "rtx4090"], (3, 4), [{}]),
    ],
)  # fmt: skip
def test_the_study_that_is_printed_compares_the_values(tmp_path, capsys, words, seeds, arms):
    assert main(["train", "std_dev_off", *words, "--grpo_steps", "4"]) == 2
    _, pasted = capsys.readouterr().err.split("\n\n")
    (tmp_path / "study.yaml").write_text(pasted)
    study = load_study(tmp_path / "study.yaml")
    assert [arm.overrides for arm in study.arms] == arms and study.seeds == seeds
    assert {arm.recipe.name for arm in study.arms} == {"std_dev_off.yaml"}


@pytest.mark.parametrize("words", [["--stop", "a", "b"], ["--learning_rate", "1e-5"]])
def test_lists_and_single_values_are_not_several(words):
    refuse_several("std_dev_off", words)


def test_a_wrong_value_among_several_is_still_named(capsys):
    assert main(["train", "std_dev_off", "--learning_rate", "1e-5", "high"]) == 2
    assert "learning_rate is the list [1e-05, 'high']; it takes a number" in capsys.readouterr().err
