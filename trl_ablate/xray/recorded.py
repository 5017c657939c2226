"""Rollouts of a run, `rollouts/STEP.jsonl`, in place of new ones.

The file holds texts, in the order of the batch, if the run saved whole batches
(`num_rollouts_saved` at least the rollout batch). Tokens are those of the text, encoded again;
rewards are computed again, as for new rollouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.run.json_files import read_jsonl

SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Recorded:
    """Whole rollout batches of a run."""

    questions: list[dict[str, Any]]
    """Rows of the training set, one per group."""
    completion_ids: list[list[int]]


def read_recorded(
    file: Path, resolved: Resolved, dataset: Dataset, tokenizer: Any, batches: int
) -> Recorded:
    """The first rollout batches of a file."""
    config: Any = resolved.config
    rows = list(read_jsonl(file))
    wanted, group = batches * config.generation_batch_size, config.num_generations
    if len(rows) < wanted:
        raise ConfigurationError(
            f"{file} has {len(rows)} rollouts, and {batches} rollout batches take {wanted}; lower "
            "--batches, train with a larger num_rollouts_saved, or draw new rollouts"
        )
    asked: Any = dataset
    known: dict[str, Any] = {str(row["prompt"]): row for row in asked}
    prompts = [str(row.get("prompt")) for row in rows[:wanted]]
    for first in range(0, wanted, group):
        if len(set(prompts[first : first + group])) > 1:
            raise ConfigurationError(
                f"{file} has no whole groups of {group}: it is a sample of a batch; train with a "
                f"num_rollouts_saved of at least {config.generation_batch_size}, or draw new ones"
            )
        if prompts[first] not in known:
            raise ConfigurationError(
                f"{file} has the prompt {prompts[first][-80:]!r}, which the reference does not "
                "ask: it is of another template, tokenizer or data; draw new rollouts"
            )
    completions = [_tokens(str(row.get("response")), config, tokenizer) for row in rows[:wanted]]
    return Recorded([known[prompts[first]] for first in range(0, wanted, group)], completions)


def _tokens(response: str, config: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of a response; its end-of-sequence token, which the text lacks, is added unless a
    stop string or the limit ended it."""
    limit: int = config.max_completion_length
    ids = list(tokenizer.encode(response, add_special_tokens=False))[:limit]
    stops: Sequence[str] = config.stop or ()
    if len(ids) < limit and not any(response.endswith(stop) for stop in stops):
        end: Any = tokenizer.eos_token_id
        ids.append(end)
    return ids
