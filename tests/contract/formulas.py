"""What closed formulas of the loss are compared with: one batch, its log-probabilities from a plain
forward pass, and gradients. Nothing here is a part of TRL's loss."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trl_ablate.trainer.groups import Scored

BETA, ACCUMULATION = 0.3, 2
LENGTHS = (8, 3, 1, 6)
"""Tokens of the batch's responses."""
RELATIVE = 2e-5
"""fp32 sums in two different orders agree to this."""


def small_batch() -> dict[str, torch.Tensor]:
    """Four rows of 5 + 8 tokens; one prompt is padded."""
    generator = torch.Generator().manual_seed(3)
    prompt_mask = torch.ones(4, 5, dtype=torch.long)
    prompt_mask[1, :2] = 0
    return {
        "prompt_ids": torch.randint(5, 200, (4, 5), generator=generator),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(5, 200, (4, 8), generator=generator),
        "completion_mask": (torch.arange(8) < torch.tensor(LENGTHS)[:, None]).long(),
        "advantages": torch.tensor([1.3, -0.7, 0.4, -1.1]),
        "num_items_in_batch": torch.tensor(37),
    }


def scored(batch: dict[str, torch.Tensor], outcomes: list[float]) -> Scored:
    """The batch as two groups of two with these rewards."""
    batch = {**batch, "num_items_in_batch": torch.tensor(sum(LENGTHS))}
    return Scored(batch, torch.tensor(outcomes), None, torch.zeros(4).bool(), None, LENGTHS)


def amid_a_step(trainer: Any, accumulation: int = 1) -> Any:
    """The trainer, as in the middle of a step with so many microbatches."""
    trainer.current_gradient_accumulation_steps = accumulation
    if accumulation == 1:
        trainer.args.steps_per_generation = 1
    trainer.model.train()
    return trainer


def generated(trainer: Any, *prompts: int) -> dict[str, torch.Tensor]:
    """What a training step gets of these prompts, by default two, with four completions each."""
    trainer.model.train()
    rows = [place for place in prompts or (0, 1) for _ in range(4)]
    return trainer._generate_and_score_completions([dict(trainer.train_dataset[i]) for i in rows])


@torch.no_grad()
def away_from_reference(model: Any) -> None:
    """Change the policy, so that it differs from the reference."""
    for parameter in model.parameters():
        parameter.mul_(1.5)


def logits_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Those that the response tokens were drawn from."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    width = batch["completion_ids"].size(1)
    return model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]


def logps_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities of the response tokens."""
    logps = logits_of(model, batch).log_softmax(-1)
    return logps.gather(2, batch["completion_ids"][..., None]).squeeze(2)


def nearby(model: Any, batch: dict[str, torch.Tensor], spread: float, seed: int = 7):
    """Log-probabilities that differ from the model's own by noise."""
    with torch.no_grad():
        now = logps_of(model, batch)
    return now + spread * torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def k3(logps: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    return torch.exp(ref - logps) - (ref - logps) - 1


def gradients(loss: torch.Tensor, model: Any) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    scale = expected.abs().max()
    assert scale > 0
    assert (ours - expected).abs().max() <= RELATIVE * scale


def assert_losses_are(
    trainer: Any,
    parts: list[dict[str, torch.Tensor]],
    batch: dict[str, torch.Tensor],
    formula: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Sum and gradient of the losses are the formula's, of the log-probabilities of the batch."""
    ours = torch.stack([trainer._compute_loss(trainer.model, part) for part in parts]).sum()
    our_gradient = gradients(ours, trainer.model)
    theirs = formula(logps_of(trainer.model, batch))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6)
    assert_same(our_gradient, gradients(theirs, trainer.model))


def assert_loss_is(
    trainer: Any, inputs: dict[str, torch.Tensor], formula: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert_losses_are(trainer, [inputs], inputs, formula)


def last_logged(trainer: Any) -> dict[str, Any]:
    trainer.log({})
    return trainer.state.log_history[-1]
