"""Arms whose effect on the gradient is known, on rollouts of a tiny model; what is written."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.tiny_models import save_tiny_qwen2
from tests.support.xray_cases import small_xray
from trl_ablate.trainer.mismatch import MismatchCorrection
from trl_ablate.xray import plots, xray


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


def test_the_std_of_equal_groups_and_a_weight_of_the_reward_without_it_only_rescale(tiny_model):
    arms = ["grpo", "std_dev_off", "std_dev_off+reward_weights=3"]
    result = xray(arms, (), 2, overrides=small_xray(tiny_model, "alternating"))
    std = (1 / 3) ** 0.5  # of 0, 1, 0, 1
    for arm, ratio in zip(arms[1:], (std, 3 * std), strict=True):
        found = entry(result, arm)
        assert found["norm_ratio"] == pytest.approx(ratio, rel=1e-4)
        assert found["cosine_batch_min"] > 0.999999
        assert found["verdict"] == "only rescales"
        assert f"learning rate × {1 / ratio:.3g}" in found["sentence"]


@pytest.mark.slow
def test_clipping_shows_at_a_drift(tiny_model, rollouts):
    arms = ["grpo", "grpo+surrogate=no_clip"]
    result = xray(arms, (), 1, drift=8, overrides=small_xray(tiny_model), rollouts=rollouts)
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
    xray(["grpo", "grpo"], (), 1, drift=3, overrides=small_xray(tiny_model, **changes))
    first, *others = ratios
    assert len(others) > 3 and not torch.allclose(first, torch.ones_like(first), atol=1e-4)
    assert all(torch.allclose(ratio, first, atol=1e-3) for ratio in others)


@pytest.mark.slow
def test_a_gradient_that_is_no_number_is_not_called_zero(tiny_model, rollouts, tmp_path):
    arms = ["grpo", "grpo+positive_weight=1e38"]
    settings = small_xray(tiny_model)
    found = xray(arms, (), 1, overrides=settings, rollouts=rollouts, output=tmp_path)
    assert entry(found, arms[1])["verdict"] == "not finite"
    assert (tmp_path / "xray.png").exists()
    found = xray(arms[::-1], (), 1, overrides=settings, rollouts=rollouts)
    assert entry(found, arms[0])["verdict"] == "not finite"  # there is nothing to compare it with


@pytest.mark.slow
def test_the_second_moments_of_a_checkpoint_scale_the_gradient(tiny_model, tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    save_tiny_qwen2(checkpoint, max_position_embeddings=256)
    write_moments(tiny_model, checkpoint)
    arms = ["grpo", "std_dev_off"]
    point = xray(arms, [checkpoint], 2, overrides=small_xray(tiny_model)).points[0]
    assert point.notes == []
    figures = point.arms["std_dev_off"].figures
    # second moments of 1, corrected by 1 - 0.95², divide every coordinate by the same number
    divisor = (1 / (1 - 0.95**2)) ** 0.5
    assert figures.adam.cosine_mean == pytest.approx(figures.plain.cosine_mean, abs=1e-5)
    assert figures.adam.noise == pytest.approx(figures.plain.noise / divisor, rel=1e-4)


def write_moments(model, checkpoint):
    """The state of an Adam after two steps, whose second moments are all 1."""
    groups = {True: [], False: []}  # with weight decay, without
    for name, parameter in AutoModelForCausalLM.from_pretrained(model).named_parameters():
        groups["norm" not in name and "bias" not in name].append(parameter)
    optimizer = torch.optim.AdamW([{"params": one} for one in groups.values()], betas=(0.9, 0.95))
    for parameter in groups[True] + groups[False]:
        ones = torch.ones_like(parameter)
        state = {"step": torch.tensor(2.0), "exp_avg": ones.clone(), "exp_avg_sq": ones}
        optimizer.state[parameter] = state
    torch.save(optimizer.state_dict(), checkpoint / "optimizer.pt")


def test_what_is_written(on_policy, output):
    written = json.loads((output / "xray.json").read_text())
    assert written["reference"] == "grpo" and written.keys() == on_policy.to_dict().keys()
    skipped = "grpo+num_generations=8"
    assert "num_generations is 8, not 4" in written["skipped"][skipped]
    assert skipped not in written["arms"]
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
    _, other, *_, last = on_policy.against
    (point,) = on_policy.points
    at = point.arms[last]
    wide = replace(at.figures, plain=replace(at.figures.plain, cosine_mean_interval=(-0.9, 1.1)))
    point = replace(point, arms={**point.arms, last: replace(at, figures=wide)})
    apart = replace(on_policy, against={**on_policy.against, last: other}, points=[point])
    directions = plots.draw(apart).axes[0]
    assert directions.get_ylim()[0] < -0.9
    hollow = [mark.get_markerfacecolor() == "white" for mark in directions.lines[:-1]]
    assert hollow == [arm == last for arm in apart.against]
    assert "hollow" in directions.get_title(loc="left")
