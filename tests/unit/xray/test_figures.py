"""Figures of gradients that are written down, against numbers computed by hand; and sketches of
gradients, which keep cosines, are seeded, and add up."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from trl_ablate.study.report.stats import t_interval
from trl_ablate.xray.figures import (
    by_module,
    directions,
    figures_of,
    floor_of,
    jackknife,
    verdict_of,
)
from trl_ablate.xray.gradients import (
    BY,
    SIZE,
    TakenGradients,
    add_to,
    cell_of,
    divisors_of,
    places_and_signs,
)

REFERENCE_BM = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, -1.0]])
"""A common direction of length 1, and noise of length 1 across it."""
ZEROS = np.zeros((4, 3))


def taken(sketches_BM, cells=((1.0, 0.0), (1.0, 0.0)), positive=0.5):
    return TakenGradients(
        norms_BK=np.linalg.norm(sketches_BM, axis=1)[:, None],
        sketches_BKM=sketches_BM[:, None],
        cells=["embeddings", "3 attention"],
        cell_sketches_CM=np.array(cells),
        pushes={by: np.array([[positive, 1 - positive]]) for by in BY},
    )


def found(arm_BM, reference_BM=REFERENCE_BM):
    norms = (np.linalg.norm(one, axis=1) for one in (arm_BM, reference_BM))
    return directions(arm_BM, reference_BM, *norms)


def test_signal_and_noise():
    same = found(REFERENCE_BM)
    # pairs: (1, 2) 0, (3, 4) 0, the other four 1: mean 4/6; squared norms 2
    assert same.signal == pytest.approx(math.sqrt(2 / 3))
    assert same.noise == pytest.approx(math.sqrt(2 - 2 / 3))
    assert same.self_cosine == pytest.approx(2 / 3 / 2)
    assert same.signal_to_noise == pytest.approx(math.sqrt(0.5))
    assert same.cosine_mean == same.cosine_batch == same.norm_ratio == same.steadiness == 1


def test_arms_of_other_directions():
    steady = found(np.tile([1.0, 0.0, 0.0], (4, 1)) + 0.1 * REFERENCE_BM)
    assert steady.cosine_mean == pytest.approx(1)
    assert steady.cosine_batch == pytest.approx((1.1 + 0.1) / math.sqrt((1.21 + 0.01) * 2))
    assert steady.steadiness > 5
    across = found(np.tile([0.0, 0.0, 0.5], (4, 1)))
    assert across.cosine_mean == pytest.approx(0)
    assert across.norm_ratio == pytest.approx(0.5 / math.sqrt(2))
    assert found(-REFERENCE_BM).cosine_mean == pytest.approx(-1)


def test_zero_gradients_have_no_cosine():
    half = found(np.vstack([REFERENCE_BM[:2], ZEROS[:2]]))
    assert half.cosine_batch == pytest.approx(0.5)
    assert half.self_cosine == 0  # of the two that are not zero
    assert math.isnan(found(ZEROS).cosine_mean)
    assert math.isnan(found(ZEROS, ZEROS).cosine_batch)


def test_the_floor_is_the_reference_with_one_batch_less():
    # without the first: (3, -1, 0); the whole: (4, 0, 0)
    assert floor_of(taken(REFERENCE_BM)) == pytest.approx(3 / math.sqrt(10))
    assert floor_of(taken(REFERENCE_BM[:1])) is None


def test_intervals():
    values = np.array([1.0, 2.0, 3.0])
    of_mean = jackknife(lambda rows: float(values[rows].mean()), 3)
    whole = t_interval(values.tolist())  # the jackknife of a mean is its t interval
    assert of_mean == pytest.approx((whole.low, whole.high))
    two, three = (found(REFERENCE_BM[:n], REFERENCE_BM[:n]) for n in (2, 3))
    assert two.cosine_batch_interval is two.cosine_mean_interval is None
    assert three.cosine_batch_interval and three.cosine_mean_interval


def test_shifts_and_modules():
    reference, turned = taken(REFERENCE_BM), taken(REFERENCE_BM, ((0.0, 2.0), (1.0, 0.0)), 0.75)
    modules = by_module(turned, reference)
    assert modules["embeddings"] == {"norm_ratio": 2.0, "cosine": 0.0}
    assert modules["attention"] == modules["layer 3"] == {"norm_ratio": 1.0, "cosine": 1.0}
    figures = figures_of(turned, reference)
    assert (figures.shifts["sign"], figures.shares["sign"]) == (0.25, [0.75, 0.25])


def test_kinds_of_modules():
    names = {
        "model.embed_tokens.weight": "embeddings",
        "model.layers.3.self_attn.q_proj.weight": "3 attention",
        "model.layers.11.mlp.gate_proj.weight": "11 MLP",
        "model.layers.0.post_attention_layernorm.weight": "0 norm",
        "model.norm.weight": "norm",
        "lm_head.weight": "head",
        "transformer.h.2.ln_1.weight": "2 norm",
    }
    assert {name: cell_of(name) for name in names} == names


def test_what_adam_divides_by():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], betas=(0.9, 0.75), eps=1.0)
    assert divisors_of(optimizer, {"w": weight}) is None
    weight.grad = torch.tensor([3.0])
    optimizer.step()  # the second moment is 9 / 4, corrected by 1 - 0.75
    assert divisors_of(optimizer, {"w": weight}) == {"w": torch.tensor([4.0])}


INERT = replace(figures_of(taken(REFERENCE_BM), taken(REFERENCE_BM)), shifts=dict.fromkeys(BY, 0.0))


def figures(moved=None, steady=(0.9, 1.0, 1.1), **changes):
    low, ratio, high = steady
    plain = replace(INERT.plain, steadiness=ratio, steadiness_interval=(low, high), **changes)
    return replace(INERT, plain=plain, shifts={**INERT.shifts, **(moved or {})})


@pytest.mark.parametrize(
    ("words", "mean", "least", "more"),
    [
        ("inert", 1.0, 1.0, {}),
        ("only rescales", 1.0, 1.0, {"norm_ratio": 0.5}),
        ("only rescales", 0.985, 0.98, {}),
        ("reweights", 0.96, 0.9, {}),
        ("reweights sign", 0.985, 0.9, {"moved": {"sign": 0.2}}),
        ("reweights length, sign", 0.8, 0.8, {"moved": {"sign": 0.11, "length": 0.2}}),
        ("other direction", 0.6, 0.1, {}),
        ("other direction, against", -0.2, -0.1, {}),
        ("other direction, steadier", 0.6, 0.1, {"steady": (1.2, 2.0, 2.8)}),
        ("other direction", 0.6, 0.1, {"steady": (0.9, 2.0, 3.1)}),
        ("other direction, noisier", 0.6, 0.1, {"steady": (0.1, 0.5, 0.9)}),
        ("no gradient", math.nan, 1.0, {}),
    ],
)
def test_verdicts(words, mean, least, more):
    found = figures(cosine_mean=mean, cosine_batch_min=least, **more)
    assert verdict_of(found, 0.98, adam=True).words == words


@pytest.mark.parametrize(
    ("arm_BM", "reference_BM", "words"),
    [
        (ZEROS, REFERENCE_BM, "no gradient"),
        (ZEROS, ZEROS, "no gradient"),
        (REFERENCE_BM, ZEROS, "no gradient of the reference"),
    ],
)
def test_whose_gradient_is_zero(arm_BM, reference_BM, words):
    plain = found(arm_BM, reference_BM)
    assert verdict_of(replace(INERT, plain=plain), None, adam=True).words == words


def test_the_factor_of_the_learning_rate():
    one = verdict_of(figures(norm_ratio=3.0), None, adam=True)
    assert one.sentence == "a learning rate × 0.333 undoes it; Adam undoes it by itself"
    one = verdict_of(figures(norm_ratio=4.0), None, adam=True, steps=4)
    assert one.words == "only rescales"
    assert "× 4 optimizer steps" in one.sentence and "nor by Adam" in one.sentence
    one = verdict_of(figures(norm_ratio=0.5), 0.98, adam=False)
    assert one.sentence == "a learning rate × 2 undoes it"


COORDINATES = 400_000
WITHIN = 0.01
"""Of a cosine: two and a half standard errors, 1 / √65536 each, for the worst of them."""


def sketch(gradient_n, seed=0, first=0):
    found_1M = torch.zeros(1, SIZE)
    add_to(found_1M, gradient_n.unsqueeze(0), first, seed)
    return found_1M[0]


def cosine(one, other):
    return torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0).item()


@pytest.mark.parametrize("wanted", [0.0, 0.9])
def test_cosines_are_kept_within_a_hundredth(wanted):
    errors = []
    for seed in range(8):
        torch.manual_seed(seed)
        one_n, noise_n = torch.randn(2, COORDINATES)
        other_n = wanted * one_n + (1 - wanted**2) ** 0.5 * noise_n
        errors.append(cosine(sketch(one_n, seed), sketch(other_n, seed)) - cosine(one_n, other_n))
    assert max(map(abs, errors)) < WITHIN
    bound = 2 * (1 - wanted**2) / SIZE**0.5  # two standard errors, of 8 draws
    assert torch.tensor(errors).std().item() < bound
    # like a gradient: a few large coordinates and many small ones, shared in part
    one_n, noise_n = torch.stack([one_n, noise_n]) * torch.randn(COORDINATES).mul(2).exp()
    kept = cosine(sketch(one_n), sketch(one_n + noise_n))
    assert kept == pytest.approx(cosine(one_n, one_n + noise_n), abs=3 * WITHIN)


def test_it_is_linear_and_parts_of_a_model_add_up_to_the_whole():
    gradient_n = torch.randn(1000)
    parts = sketch(gradient_n[:300]) + sketch(gradient_n[300:], first=300)
    torch.testing.assert_close(parts, sketch(gradient_n))
    torch.testing.assert_close(sketch(3 * gradient_n), 3 * sketch(gradient_n))


def test_the_seed_decides():
    first, again, other = (places_and_signs(0, COORDINATES, seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, again))
    for one, another, same in zip(first, other, (1e-3, 0.51), strict=True):
        assert (one == another).float().mean() < same
