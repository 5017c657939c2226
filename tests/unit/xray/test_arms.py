"""The arms of an X-ray, and what a study's words for them mean."""

import pytest

from trl_ablate.cli.xray import folder_for
from trl_ablate.recipe.places import study_path
from trl_ablate.study.definition import load_study
from trl_ablate.xray.chosen_arms import arms_of


def test_of_tuned_arms_the_middle_value_stands_for_all():
    tuning = load_study(study_path("chains_papers")).tuning
    assert tuning is not None
    arms = arms_of("chains_papers")
    assert [arm.name for arm in arms] == list(tuning.arms)
    scale = arms[0].resolved.task.learning_rate_scale
    assert {arm.resolved.config.learning_rate for arm in arms} == {tuning.values[1] * scale}


def test_the_arms_of_a_study_know_what_they_are_compared_with():
    against = {arm.name: arm.against for arm in arms_of("chains")}
    assert against["no_baseline_constant"] == "no_baseline" and against["std_dev_off"] is None


@pytest.mark.parametrize(
    ("arm", "folder"),
    [
        (".", "xray-here"),
        ("recipes/grpo.yaml", "xray-grpo"),
        ("no_baseline+length_norm=constant", "xray-no_baseline"),
    ],
)
def test_an_xray_is_written_to_a_folder_named_by_its_first_arm(tmp_path, monkeypatch, arm, folder):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert str(folder_for(arm)) == folder
