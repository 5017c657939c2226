"""The projection keeps cosines, is seeded, and adds up."""

import pytest
import torch

from trl_ablate.xray.gradients import SIZE, add_to, places_and_signs

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
    places_n, signs_n = places_and_signs(0, COORDINATES, 0)
    again_n, _ = places_and_signs(0, COORDINATES, 0)
    others_n, _ = places_and_signs(0, COORDINATES, 1)
    assert torch.equal(places_n, again_n)
    assert (places_n == others_n).float().mean() < 1e-3
    assert abs(signs_n.mean().item()) < 0.01
    counts = torch.bincount(places_n, minlength=SIZE).float()
    assert counts.var().item() == pytest.approx(COORDINATES / SIZE, rel=0.05)  # as Poisson
