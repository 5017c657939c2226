"""The loss of `AblationTrainer` against closed formulas, in value and gradient.

The formulas below follow the definitions, with log-probabilities from a plain forward pass of the
model. They use no part of TRL's loss.
"""

import pytest
import torch

from trl_ablate.losses import loss_denominator
from trl_ablate.settings import choices
from trl_ablate.switches import Surrogate

SURROGATES = ("clip", "no_clip", "reinforce")
LENGTH_NORMS = ("mean", "constant", "microbatch", "token")
EPSILON, CONSTANT, BETA, ACCUMULATION = 0.2, 9.0, 0.3, 2
RELATIVE = 2e-5
"""fp32 sums in two different orders agree to this."""


@pytest.fixture
def batch(tiny_model):
    """Four rows of 5 + 8 tokens; one prompt is padded; responses have 8, 3, 1 and 6 tokens."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([8, 3, 1, 6])
    mask = (torch.arange(8) < lengths[:, None]).long()
    prompt_mask = torch.ones(4, 5, dtype=torch.long)
    prompt_mask[1, :2] = 0
    return {
        "prompt_ids": torch.randint(5, 200, (4, 5), generator=generator),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(5, 200, (4, 8), generator=generator),
        "completion_mask": mask,
        "advantages": torch.tensor([1.3, -0.7, 0.4, -1.1]),
        "num_items_in_batch": torch.tensor(37),
    }


def logps_of(model, batch):
    """`(4, 8)` log-probabilities of the response tokens, from a plain forward pass."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, 4:-1]
    return torch.log_softmax(logits, -1).gather(2, batch["completion_ids"][..., None]).squeeze(2)


def closed_form(logps, old, ref, batch, surrogate, length_norm, beta):
    """The loss of one of two microbatches, from the definitions."""
    advantages = batch["advantages"][:, None]
    ratio = torch.exp(logps - old)
    objective = {
        "clip": torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages),
        "no_clip": ratio * advantages,
        "reinforce": torch.exp(logps - logps.detach()) * advantages,
    }[surrogate]
    loss = -objective
    if beta:
        loss = loss + beta * (torch.exp(ref - logps) - (ref - logps) - 1) * ratio
    mask = batch["completion_mask"]
    # `token` divides by the tokens of its share of the optimizer step: 37 over 2 microbatches
    divisor = loss_denominator(mask, length_norm, constant=CONSTANT, num_items=37)
    accumulation = 1 if length_norm == "token" else ACCUMULATION
    return ((loss * mask).sum(1) / divisor).sum() / accumulation


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def with_other_logps(trainer, batch, name, spread):
    """The trainer's loss and gradient if the batch has log-probabilities, called `name`, that
    differ from the current ones; first those."""
    trainer.model.train()
    with torch.no_grad():
        now = logps_of(trainer.model, batch)
    other = now + spread * torch.randn(4, 8, generator=torch.Generator().manual_seed(7))
    loss = trainer._compute_loss(trainer.model, {**batch, name: other})
    return other, loss, gradients(loss, trainer.model)


def assert_same(ours, expected):
    scale = expected.abs().max()
    assert scale > 0
    assert (ours - expected).abs().max() <= RELATIVE * scale


def trainer_with(make_trainer, **switches):
    trainer = make_trainer(epsilon=EPSILON, length_norm_constant=CONSTANT, **switches)
    trainer.current_gradient_accumulation_steps = ACCUMULATION
    trainer.model.train()
    return trainer


@pytest.mark.sample(8)
@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_loss_and_gradient(make_trainer, batch, surrogate, length_norm, beta):
    trainer = trainer_with(make_trainer, surrogate=surrogate, length_norm=length_norm, beta=beta)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        now = logps_of(trainer.model, batch)
    old = now + 0.4 * torch.randn(4, 8, generator=generator)
    ref = now + 0.4 * torch.randn(4, 8, generator=generator)
    batch |= {"old_per_token_logps": old, "ref_per_token_logps": ref}

    ours = trainer._compute_loss(trainer.model, batch)
    our_gradient = gradients(ours, trainer.model)
    logps = logps_of(trainer.model, batch)
    theirs = closed_form(logps, old, ref, batch, surrogate, length_norm, beta)

    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))


@pytest.mark.parametrize("surrogate", choices(Surrogate))
def test_the_off_policy_mask(make_trainer, batch, surrogate):
    """A row with A < 0 whose mean log(old/new) is above the threshold counts as if A were 0."""
    settings = {"surrogate": surrogate, "length_norm": "mean"}
    with_mask = trainer_with(make_trainer, off_policy_mask_threshold=0.1, **settings)
    without = trainer_with(make_trainer, **settings)
    with torch.no_grad():
        now = logps_of(without.model, batch)
    batch["old_per_token_logps"] = now + torch.tensor([0.2, 0.2, 0.05, 0.05])[:, None]
    ours = gradients(with_mask._compute_loss(with_mask.model, batch), with_mask.model)
    batch["advantages"] = torch.tensor([1.3, 0.0, 0.4, -1.1])
    assert_same(ours, gradients(without._compute_loss(without.model, batch), without.model))


@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
def test_reinforce_follows_the_score_function(make_trainer, batch, length_norm):
    """Its gradient is that of -A log pi, for any old log-probabilities."""
    trainer = trainer_with(make_trainer, surrogate="reinforce", length_norm=length_norm)
    batch["old_per_token_logps"] = torch.full((4, 8), -3.0)
    ours = gradients(trainer._compute_loss(trainer.model, batch), trainer.model)
    mask = batch["completion_mask"]
    divisor = loss_denominator(mask, length_norm, constant=CONSTANT, num_items=37)
    score = -(batch["advantages"][:, None] * logps_of(trainer.model, batch) * mask).sum(1) / divisor
    accumulation = 1 if length_norm == "token" else ACCUMULATION
    assert_same(ours, gradients(score.sum() / accumulation, trainer.model))


def test_on_policy_every_surrogate_has_the_same_gradient(make_trainer, batch):
    found = []
    for surrogate in SURROGATES:
        trainer = trainer_with(make_trainer, surrogate=surrogate, length_norm="mean")
        found.append(gradients(trainer._compute_loss(trainer.model, batch), trainer.model))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_off_policy_they_differ(make_trainer, batch):
    found = []
    for surrogate in SURROGATES:
        trainer = trainer_with(make_trainer, surrogate=surrogate, length_norm="mean")
        with torch.no_grad():
            batch["old_per_token_logps"] = logps_of(trainer.model, batch) - 0.5
        found.append(gradients(trainer._compute_loss(trainer.model, batch), trainer.model))
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert (found[one] - found[other]).abs().max() > 0.05 * found[0].abs().max()


def test_every_length_norm_has_its_own_gradient(make_trainer, batch):
    found = {}
    for length_norm in LENGTH_NORMS:
        trainer = trainer_with(make_trainer, length_norm=length_norm)
        found[length_norm] = gradients(trainer._compute_loss(trainer.model, batch), trainer.model)
    names = list(found)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert (found[one] - found[other]).abs().max() > 1e-3 * found[one].abs().max()


def test_length_norm_constant_defaults_to_max_completion_length(make_trainer, batch):
    losses = []
    for constant in (None, 12.0):  # the fixture's max_completion_length
        trainer = make_trainer(length_norm="constant", length_norm_constant=constant)
        trainer.current_gradient_accumulation_steps = 1
        losses.append(trainer._compute_loss(trainer.model, batch).item())
    assert losses[0] == losses[1]


def test_the_switches_are_put_back_after_the_loss(make_trainer, batch):
    trainer = trainer_with(make_trainer, surrogate="no_clip", length_norm="microbatch")
    trainer._compute_loss(trainer.model, batch)
    assert trainer.max_completion_length == 12
    assert (trainer.epsilon_low, trainer.epsilon_high) == (EPSILON, EPSILON)


def test_ratio_metrics_are_logged_over_response_tokens(make_trainer, batch):
    trainer = trainer_with(make_trainer, surrogate="clip", length_norm="mean")
    with torch.no_grad():
        now = logps_of(trainer.model, batch)
    # 18 response tokens; raise the ratio of the first row (A > 0, 8 tokens) to e^0.5: all clipped
    shift = torch.zeros(4, 8)
    shift[0] = 0.5
    batch["old_per_token_logps"] = now - shift
    trainer._compute_loss(trainer.model, batch)
    trainer.log({})
    logged = trainer.state.log_history[-1]
    assert logged["clip_fraction"] == pytest.approx(8 / 18)
    assert logged["mean_ratio"] == pytest.approx((8 * 2.718281828**0.5 + 10) / 18, rel=1e-4)


@pytest.mark.parametrize("surrogate", ["no_clip", "reinforce"])
def test_unclipped_surrogates_log_no_clipping(make_trainer, batch, surrogate):
    trainer = trainer_with(make_trainer, surrogate=surrogate, length_norm="mean")
    batch["old_per_token_logps"] = torch.full((4, 8), -3.0)
    trainer._compute_loss(trainer.model, batch)
    trainer.log({})
    assert trainer.state.log_history[-1]["clip_fraction"] == 0.0
    assert trainer.state.log_history[-1]["mean_ratio"] != 1.0
