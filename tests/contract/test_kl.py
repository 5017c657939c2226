"""KL estimates by enumeration, and in the reward; those in the loss are in `test_loss`."""

import pytest
import torch

from tests.contract.formulas import BETA, away_from_reference, generated, logps_of
from trl_ablate.losses import kl_to_reference

ESTIMATORS = ("k1", "k2", "k3")
VOCABULARY = 5


@pytest.fixture
def policies():
    """Logits of a policy over sequences of two tokens, `(1 + 5, 5)`, and of a reference. The second
    token's distribution depends on the first."""
    generator = torch.Generator().manual_seed(1)
    shape = (1 + VOCABULARY, VOCABULARY)
    theta = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    return theta, torch.randn(shape, generator=generator, dtype=torch.float64)


def sequences(logits):
    """Log-probabilities of both tokens of all 25 sequences, `(25, 2)`."""
    logps = torch.log_softmax(logits, -1)
    first = logps[0].repeat_interleave(VOCABULARY)
    return torch.stack([first, logps[1:].flatten()], dim=1)


def true_gradient(theta, reference):
    """The gradient of KL(π, π_ref) over sequences, by enumeration."""
    one, other = sequences(theta), sequences(reference)
    kl = (one.sum(1).exp() * (one.sum(1) - other.sum(1))).sum()
    return torch.autograd.grad(kl, theta)[0]


def expected_gradient(theta, reference, estimator, place):
    """The mean over all sequences, with their probabilities, of one update's KL gradient."""
    logps, ref = sequences(theta), sequences(reference)
    probabilities = logps.sum(1).exp().detach()
    kl = kl_to_reference(logps, ref, estimator)
    if place == "reward":  # the score function of the sequence, times its summed KL
        update = kl.detach().sum(1) * logps.sum(1)
    elif place == "loss":
        update = kl.sum(1)
    else:  # multiplied by the ratio of the token
        update = (kl * torch.exp(logps - logps.detach())).sum(1)
    return torch.autograd.grad((probabilities * update).sum(), theta)[0]


def same(one, other):
    return (one - other).abs().max() < 1e-12


def test_of_an_estimate_in_the_reward_k1_alone_is_unbiased(policies):
    assert same(expected_gradient(*policies, "k1", "reward"), true_gradient(*policies))
    for estimator in ("k2", "k3"):
        assert not same(expected_gradient(*policies, estimator, "reward"), true_gradient(*policies))
    assert same(expected_gradient(*policies, "k1", "loss"), torch.zeros(6, 5))


def of_each_token(policies, *, reverse=False):
    """The sum of the gradients of each token's KL, at the policy's own prefixes."""
    theta, reference = policies
    logps, ref = torch.log_softmax(theta, -1), torch.log_softmax(reference, -1)
    one, other = (ref, logps) if reverse else (logps, ref)
    kl = (one.exp() * (one - other)).sum(1)
    weights = torch.cat([torch.ones(1), logps[0].detach().exp()])  # of each prefix
    return torch.autograd.grad((weights * kl).sum(), theta)[0]


@pytest.mark.parametrize(
    ("estimator", "place", "reverse"),
    [
        ("k2", "loss", False),
        ("k3", "loss", True),  # the other direction: biased
        ("k1", "loss times ratio", False),
        ("k3", "loss times ratio", False),
    ],
)
def test_in_the_loss_each_has_the_gradient_of_a_token_s_kl(policies, estimator, place, reverse):
    found = expected_gradient(*policies, estimator, place)
    assert same(found, of_each_token(policies, reverse=reverse))
    assert not same(found, of_each_token(policies, reverse=not reverse))


# d = log ref - log π = 0 and ln 2: k1 0, -ln 2; k2 0, (ln 2)²/2; k3 0, 2 - ln 2 - 1
@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", -0.693147), ("k2", 0.240227), ("k3", 0.306853)]
)
def test_the_three_estimates(estimator, expected):
    got = kl_to_reference(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -0.306853]), estimator)
    assert got.tolist() == pytest.approx([0.0, expected], abs=1e-5)


def test_an_unknown_estimate_is_refused_by_name():
    with pytest.raises(ValueError, match="kl_estimator is 'k4'; allowed: k1, k2, k3"):
        kl_to_reference(torch.zeros(1), torch.zeros(1), "k4")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_kl_of_the_reward(make_trainer, estimator, epochs):
    """Advantages are those of the reward minus beta times the summed KL; the loss has no KL."""
    settings = {"beta": BETA, "kl_in": "reward", "kl_estimator": estimator}
    trainer = make_trainer(scale_rewards="none", num_iterations=epochs, **settings,
                           generation_batch_size=8)  # fmt: skip
    away_from_reference(trainer.model)
    output = generated(trainer)
    mask = output["completion_mask"]
    with torch.no_grad():
        logps = logps_of(trainer.model, output)
    kl = kl_to_reference(logps, output["ref_per_token_logps"], estimator) * mask
    rewards = torch.tensor([row["reward"] for row in trainer.latest_rollouts()])
    shaped = (rewards - BETA * kl.sum(1)).view(2, 4)
    expected = (shaped - shaped.mean(1, keepdim=True)).flatten()
    torch.testing.assert_close(output["advantages"], expected, atol=1e-5, rtol=1e-4)
    assert kl.sum(1).abs().max() > 1e-3
    assert trainer._metrics["train"]["kl"] == pytest.approx(
        [(kl.sum() / mask.sum()).item()], rel=1e-3
    )
    plain = make_trainer(scale_rewards="none", generation_batch_size=8)
    plain.model.load_state_dict(trainer.model.state_dict())
    for one in (trainer, plain):
        one.current_gradient_accumulation_steps = 1
        one.model.train()
    inputs = {key: value[:4] if value.dim() else value for key, value in output.items()}
    losses = [one._compute_loss(one.model, inputs).item() for one in (trainer, plain)]
    assert losses[0] == losses[1]
