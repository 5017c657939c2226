"""How many positions of a model are computed, and how few any exact method computes.

A position is one token of one row in one forward pass. With a backward pass, which takes twice the
arithmetic, it counts as 3. Attention over long rows, the LM head and the optimizer are not in it,
so that a time can be saved in another proportion.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from trl_ablate.trainer.temporary import replaced

WITH_BACKWARD = 3

LIMIT = "positions of stock TRL, in multiples of the fewest"


class Positions(Counter):
    """Positions by part of the work: those computed, and the fewest that could have been."""

    part = "train"

    @contextmanager
    def of(self, model: Any):
        """Count what the model embeds within the block, whoever calls it."""
        embed, table = functional.embedding, model.get_input_embeddings().weight.shape

        def embedding(ids: torch.Tensor, weight: torch.Tensor, *rest: Any, **named: Any) -> Any:
            if weight.shape == table:
                self[self.part] += ids.numel() * (WITH_BACKWARD if torch.is_grad_enabled() else 1)
            return embed(ids, weight, *rest, **named)

        with replaced(functional, embedding=embedding):
            yield

    @contextmanager
    def of_steps(self, trainer: Any):
        """Count the rollouts and the training of a trainer."""
        generate = trainer._generate_and_score_completions

        def generate_counted(inputs: Any) -> Any:
            self.part = "rollout"
            batch = generate(inputs)
            self.part = "train"
            self.update(fewest_of(batch, trainer.num_generations))
            return batch

        with (
            self.of(trainer.model),
            replaced(trainer, _generate_and_score_completions=generate_counted),
        ):
            yield


def fewest_of(batch: dict[str, torch.Tensor], group: int) -> dict[str, int]:
    """The fewest positions of a rollout batch, whose groups stand one after another."""
    rows = len(batch["completion_mask"])
    learns_N = batch["advantages"].reshape(rows, -1).ne(0).any(dim=1).tolist()
    prompts_G = batch["prompt_mask"].sum(dim=1)[::group].tolist()
    responses_N = batch["completion_mask"].sum(dim=1).tolist()
    return {
        "fewest, rollout": fewest(prompts_G, responses_N, [False] * rows),
        "fewest, train": fewest(prompts_G, responses_N, learns_N),
    }


def fewest(prompts_G: Sequence[int], responses_N: Sequence[int], learns_N: Sequence[bool]) -> int:
    """Each prompt once for its group, each response without its last token, and a backward pass
    only for rows that learn and their prompts."""
    group = len(responses_N) // len(prompts_G)
    return sum(
        length * (WITH_BACKWARD if any(learns_N[place * group : (place + 1) * group]) else 1)
        for place, length in enumerate(prompts_G)
    ) + sum(
        max(0, length - 1) * (WITH_BACKWARD if learns else 1)
        for length, learns in zip(responses_N, learns_N, strict=True)
    )
