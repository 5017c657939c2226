"""Arms whose effect on the gradient is known, on rollouts of a tiny model; the arms of a study."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from tests.support.xray_cases import small_xray
from trl_ablate.cli.main import main
from trl_ablate.cli.xray import folder_for, saved_runs
from trl_ablate.recipe.places import study_path
from trl_ablate.study.definition import load_study
from trl_ablate.trainer.mismatch import MismatchCorrection
from trl_ablate.xray import plots, xray
from trl_ablate.xray.chosen_arms import arms_of

BATCHES = 3
ARMS = [
    "grpo", "grpo", "grpo+surrogate=no_clip", "grpo+positive_weight=3", "length_norm_constant",
    "grpo+num_generations=8",
]  # fmt: skip
NO_STD = ["std_dev_off", "std_dev_off+reward_weights=3"]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("xray")


@pytest.fixture(scope="module")
def on_policy(tiny_model, output):
    return xray(ARMS, (), BATCHES, overrides=small_xray(tiny_model), output=output)


@pytest.fixture
def rollouts(on_policy, output):
    return output / "rollouts" / "base"


def entry(result, arm, place=0):
    return result.to_dict()["arms"][arm][place]


def test_arms_whose_effect_is_known(on_policy):
    twin = entry(on_policy, "grpo (2)")
    assert twin["verdict"] == entry(on_policy, "grpo+surrogate=no_clip")["verdict"] == "inert"
    assert twin["cosine_batch"] == twin["cosine_mean"] == twin["norm_ratio"] == 1.0
    assert not any(twin["reweights"].values())
    found = entry(on_policy, "grpo+positive_weight=3")
    assert found["verdict"].startswith("reweights sign")
    assert found["shares"]["sign"][0] == pytest.approx(0.75, abs=0.02)
    assert found["reweights"]["sign"] == pytest.approx(0.25, abs=0.02)
    assert found["reweights"]["sign"] > found["reweights"]["length"]
    found = entry(on_policy, "length_norm_constant")
    assert found["verdict"].startswith("reweights length")
    assert found["shares"]["length"][-1] > entry(on_policy, "grpo")["shares"]["length"][-1]


def test_a_reward_times_three_without_std_only_rescales_by_three(tiny_model, rollouts):
    settings = small_xray(tiny_model)
    result = xray(NO_STD, (), BATCHES, overrides=settings, rollouts=rollouts)
    found = entry(result, NO_STD[1])
    assert found["norm_ratio"] == pytest.approx(3, rel=1e-4)
    assert found["cosine_batch_min"] > 0.999999
    assert found["verdict"] == "only rescales"
    assert "learning rate × 0.333" in found["sentence"]


def test_the_std_only_rescales_where_all_groups_have_the_same(tiny_model):
    settings = small_xray(tiny_model, "alternating")
    found = entry(xray(["grpo", "std_dev_off"], (), 2, overrides=settings), "std_dev_off")
    assert found["norm_ratio"] == pytest.approx((1 / 3) ** 0.5, rel=1e-4)  # of 0, 1, 0, 1
    assert found["cosine_batch_min"] > 0.999999
    assert found["verdict"] == "only rescales"


@pytest.mark.slow
def test_clipping_shows_at_a_drift(tiny_model, rollouts):
    arms = ["grpo", "grpo+surrogate=no_clip"]
    result = xray(arms, (), BATCHES, drift=8, overrides=small_xray(tiny_model), rollouts=rollouts)
    assert entry(result, arms[1], 0)["verdict"] == "inert"
    away = entry(result, arms[1], 1)
    assert away["drift"] == 8
    assert away["verdict"] != "inert"
    assert away["tokens"]["clipped"] == 0 < entry(result, arms[0], 1)["tokens"]["clipped"]


@pytest.mark.slow
def test_at_a_drift_the_samplers_ratio_is_that_of_the_weights_that_sampled(tiny_model, monkeypatch):
    record, ratios = MismatchCorrection.record, []

    def seen(self: MismatchCorrection, loss_pass: Any) -> None:
        ratios.append(loss_pass.shown["importance_sampling_ratio"].clone())
        record(self, loss_pass)

    monkeypatch.setattr(MismatchCorrection, "record", seen)
    changes = {"sampler_dtype": "bfloat16", "per_device_train_batch_size": 16}
    xray(["grpo", "grpo"], (), 1, drift=8, overrides=small_xray(tiny_model, **changes))
    first, *others = ratios
    assert len(others) > 8 and not torch.allclose(first, torch.ones_like(first), atol=1e-4)
    assert all(torch.allclose(ratio, first, atol=1e-3) for ratio in others)


def test_a_gradient_that_is_no_number_is_not_called_zero(tiny_model, rollouts, tmp_path):
    arms = ["grpo", "grpo+positive_weight=1e38"]
    settings = small_xray(tiny_model)
    found = xray(arms, (), 2, overrides=settings, rollouts=rollouts, output=tmp_path)
    assert entry(found, arms[1])["verdict"] == "not finite"
    assert (tmp_path / "xray.png").exists()
    found = xray(arms[::-1], (), 2, overrides=settings, rollouts=rollouts)
    assert entry(found, arms[0])["verdict"] == "not finite"  # there is nothing to compare it with


@pytest.mark.slow
def test_it_continues_from_what_is_stored(tiny_model, output, on_policy):
    settings, said = small_xray(tiny_model), []
    again = xray(ARMS, (), BATCHES, overrides=settings, output=output, say=said.append)
    assert again.to_dict() == on_policy.to_dict()
    assert said[1:] == ["base: rollouts", f"base: {on_policy.points[0].notes[0]}"]
    (output / "gradients" / "base" / "length_norm_constant.npz").unlink()
    (output / "rollouts" / "base" / "batch-001.npz").unlink()
    again = xray(ARMS, (), BATCHES, overrides=settings, output=output, say=said.append)
    assert (output / "rollouts" / "base" / "batch-001.npz").exists()
    assert _without_times(again) == _without_times(on_policy)


def test_what_is_written(on_policy, output):
    written = json.loads((output / "xray.json").read_text())
    assert written["reference"] == "grpo" and written.keys() == on_policy.to_dict().keys()
    skipped = "grpo+num_generations=8"
    assert "num_generations is 8, not 4" in written["skipped"][skipped]
    assert skipped not in written["arms"]
    (one,) = written["arms"]["length_norm_constant"]
    assert {"checkpoint", "norm_ratio", "self_cosine", "modules", "shares", "tokens"} <= one.keys()
    assert set(one["reweights"]) == {"sign", "length", "difficulty"}
    page = (output / "XRAY.md").read_text()
    assert f"| grpo (2) | 1.000 | 1.0000 [1.000, 1.000] | {1:.4f} |" in page
    assert f"- {skipped} generates differently" in page.replace("\\", "")
    summary = on_policy.summary()
    assert "  grpo (2): inert; norm × 1.000, cosine 1.0000 on the same batch" in summary
    assert "\n  inert: " in summary and "\n  no gradient: " not in summary


def test_the_picture_shows_every_arm(on_policy, output, monkeypatch):
    assert (output / "xray.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(plots, "png_of", lambda figure: figure)
    directions, *bars = plots.draw(on_policy).axes
    assert len(directions.lines) == 1 + len(on_policy.against)  # and the line at 0
    assert [one.get_text() for one in bars[0].get_yticklabels()] == list(on_policy.against)
    widths = [patch.get_width() for patch in bars[0].patches]
    assert sum(widths) == pytest.approx(len(on_policy.against), abs=1e-6)
    assert directions.lines[0].get_marker() == "*"  # the reference


def _without_times(result):
    found = result.to_dict()
    for entries in found["arms"].values():
        for one in entries:
            del one["seconds_per_batch"]
    return found


@pytest.mark.slow
def test_a_study_compares_each_arm_with_its_own_reference(tiny_model, rollouts, tmp_path):
    settings = small_xray(tiny_model)
    arms = ["grpo.yaml", "std_dev_off.yaml", "no_baseline.yaml", "length_norm_constant.yaml"]
    study = {
        "question": "q", "arms": arms, "seeds": [0], "profile": settings.pop("profile"),
        "overrides": settings, "against": {"no_baseline": "std_dev_off"},
    }  # fmt: skip
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(study))
    own = xray(file, (), BATCHES, rollouts=rollouts)
    assert own.against == {
        "grpo": "grpo", "std_dev_off": "grpo", "no_baseline": "std_dev_off",
        "length_norm_constant": "grpo",
    }  # fmt: skip
    assert own.labels["no_baseline"] == "no_baseline (against std_dev_off)"
    one = xray(file, (), BATCHES, reference="std_dev_off", rollouts=rollouts)
    assert set(one.against.values()) == {"std_dev_off"}
    same = [entry(result, "no_baseline")["cosine_mean"] for result in (own, one)]
    assert same[0] == pytest.approx(same[1], abs=1e-6)
    away = entry(xray(file, (), BATCHES, reference="grpo", rollouts=rollouts), "no_baseline")
    assert away["cosine_mean"] != pytest.approx(same[0], abs=1e-3)


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


REPEATS = ["arm: its 1 runs repeat those of grpo; leave it out", "1 of 2 runs to do can be saved"]
MAY_DIFFER = [
    "arm: the same gradient as grpo here; its 1 runs may differ", "0 of 2 runs to do can be saved",
]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "steps", "expected"),
    [
        ("surrogate", 1, REPEATS),
        ("surrogate", 8, MAY_DIFFER),
        *((name, 1, MAY_DIFFER)
          for name in ("beta", "learning_rate", "lr_scheduler_type", "optim", "weight_decay",
                       "max_grad_norm", "grpo_steps", "max_steps")),
    ],
)  # fmt: skip
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
def test_a_plan_names_the_runs_that_can_be_saved(tiny_model, tmp_path, capsys):
    settings = small_xray(tiny_model)
    study = {
        "question": "q",
        "arms": {
            "grpo": "grpo.yaml",
            "no_clip": {"recipe": "grpo.yaml", "overrides": {"surrogate": "no_clip"}},
            "std_dev_off": "std_dev_off.yaml",
        },
        "seeds": [0, 1, 2],
        "primary_metric": "reward",  # its runs are not evaluated
        "profile": settings.pop("profile"),
        "overrides": settings,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    runs = tmp_path / "runs"
    assert main(["study", "plan", str(tmp_path / "study.yaml"), "--runs", str(runs), "--xray"]) == 0
    shown = capsys.readouterr().out
    assert "no_clip: inert" in shown
    assert "no_clip: its 3 runs repeat those of grpo; leave it out" in shown
    assert "3 of 9 runs to do can be saved" in shown
    assert (runs / "xray" / tmp_path.name / "xray.json").exists()
