"""The arms of a study, what each is compared with, and the commands that show it."""

import json
import shutil
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.xray_cases import small_xray
from trl_ablate.cli.main import main
from trl_ablate.cli.xray import folder_for, saved_runs
from trl_ablate.recipe.overrides import as_words
from trl_ablate.recipe.places import study_path
from trl_ablate.study.definition import load_study
from trl_ablate.xray import xray
from trl_ablate.xray.chosen_arms import arms_of


def write_study(folder, tiny_model, **entries):
    """A study of small X-rays."""
    settings = small_xray(tiny_model)
    profile = settings.pop("profile")
    study = {"question": "q", "seeds": [0], "profile": profile, "overrides": settings, **entries}
    (folder / "study.yaml").write_text(json.dumps(study))
    return folder / "study.yaml"


@pytest.mark.slow
def test_a_study_compares_each_arm_with_its_own_reference(tiny_model, rollouts, tmp_path):
    arms = ["grpo.yaml", "std_dev_off.yaml", "no_baseline.yaml", "length_norm_constant.yaml"]
    against = {"no_baseline": "std_dev_off"}
    file = write_study(tmp_path, tiny_model, arms=arms, against=against)
    own = xray(file, (), 1, rollouts=rollouts)
    assert own.against == {
        "grpo": "grpo", "std_dev_off": "grpo", "no_baseline": "std_dev_off",
        "length_norm_constant": "grpo",
    }  # fmt: skip
    assert own.labels["no_baseline"] == "no_baseline (against std_dev_off)"
    one, other = (
        xray(file, (), 1, reference=name, rollouts=rollouts) for name in ("std_dev_off", "grpo")
    )
    assert set(one.against.values()) == {"std_dev_off"}
    same, again, away = (
        found.to_dict()["arms"]["no_baseline"][0]["cosine_mean"] for found in (own, one, other)
    )
    assert same == pytest.approx(again, abs=1e-6)
    assert same != pytest.approx(away, abs=1e-3)


def test_of_tuned_arms_the_middle_value_stands_for_all():
    tuning = load_study(study_path("chains_papers")).tuning
    assert tuning is not None
    arms = arms_of("chains_papers")
    assert [arm.name for arm in arms] == list(tuning.arms)
    scale = arms[0].resolved.task.learning_rate_scale
    assert {arm.resolved.config.learning_rate for arm in arms} == {tuning.values[1] * scale}


def test_the_arms_of_a_study_know_what_they_are_compared_with(tmp_path):
    file = shutil.copy(study_path("chains"), tmp_path / "mine.yaml")
    against = {arm.name: arm.against for arm in arms_of(file)}
    assert against["no_baseline_constant"] == "no_baseline" and against["std_dev_off"] is None
    twice = {arm.name: arm.against for arm in arms_of([file, file])}
    assert twice["no_baseline_constant (2)"] == "no_baseline (2)"


def test_the_command(tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = small_xray(tiny_model)
    words = ["grpo", "std_dev_off", "--profile", settings.pop("profile"), "--batches", "2"]
    assert main(["xray", *words, *as_words(settings)]) == 0
    shown = capsys.readouterr().out
    assert "std_dev_off: " in shown and "rules:" in shown
    assert {one.name for one in (tmp_path / "xray-grpo").iterdir()} >= {
        "xray.json", "XRAY.md", "xray.png",
    }  # fmt: skip
    assert str(folder_for("recipes/no_baseline.yaml+length_norm=constant")) == "xray-no_baseline"
    assert str(folder_for(".")) == f"xray-{tmp_path.name}"


REPEATS = ["arm: its 1 runs repeat those of grpo; leave it out", "1 of 2 runs to do can be saved"]
MAY_DIFFER = [
    "arm: the same gradient as grpo here; its 1 runs may differ", "0 of 2 runs to do can be saved",
]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "steps", "expected"),
    [("surrogate", 1, REPEATS), ("surrogate", 8, MAY_DIFFER)]
    + [(name, 1, MAY_DIFFER) for name in ("beta", "learning_rate", "max_grad_norm", "max_steps")],
)
def test_runs_are_saved_only_where_the_same_step_is_taken(setting, steps, expected):
    inert = SimpleNamespace(verdict=SimpleNamespace(words="inert"), steps=steps)
    names = ("grpo", "arm")
    result: Any = SimpleNamespace(
        against=dict.fromkeys(names, "grpo"),
        points=[SimpleNamespace(arms=dict.fromkeys(names, inert))],
    )
    runs = {name: SimpleNamespace(id=name, seed=0) for name in names}
    arms = [SimpleNamespace(name=name, runs=[run], values={setting: name}, inert={"surrogate": ""})
            for name, run in runs.items()]  # fmt: skip
    plan: Any = SimpleNamespace(arms=arms, runs=lambda: runs)
    store: Any = SimpleNamespace(state=lambda run: SimpleNamespace(done=False))
    assert list(saved_runs(result, plan, store)) == expected


@pytest.mark.slow
def test_a_plan_names_the_runs_that_can_be_saved(tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trl_ablate.xray.xray", partial(xray, batches=2))
    arms = {
        "grpo": "grpo.yaml",
        "no_clip": {"recipe": "grpo.yaml", "overrides": {"surrogate": "no_clip"}},
        "std_dev_off": "std_dev_off.yaml",
    }
    metric = "reward"  # its runs are not evaluated
    file = write_study(tmp_path, tiny_model, arms=arms, seeds=[0, 1, 2], primary_metric=metric)
    runs = tmp_path / "runs"
    assert main(["study", "plan", str(file), "--runs", str(runs), "--xray"]) == 0
    shown = capsys.readouterr().out
    assert "no_clip: inert" in shown
    assert "no_clip: its 3 runs repeat those of grpo; leave it out" in shown
    assert "3 of 9 runs to do can be saved" in shown
    assert (runs / "xray" / tmp_path.name / "xray.json").exists()
