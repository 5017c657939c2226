"""Rollouts by transformers: its own decoding against ours, which drops rows that have ended.

Both generate the same tokens, alternately for several rounds. A row ends at a length that its
prompt states, so that any distribution of lengths can be measured.
"""

from dataclasses import replace
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from trl_ablate.bench.modes import Rollout, check_rows
from trl_ablate.bench.synthetic import lengths, model_and_tokenizer
from trl_ablate.bench.timing import OURS, Measured, Positions, Result, alternate, compared, fewest
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer import decoding
from trl_ablate.trainer.temporary import replaced

BASE = 64
"""The prompt states a length by its first two tokens, as digits of a number in this base."""

THEIRS = "transformers"


class StatedLength(StoppingCriteria):
    def __init__(self, prompt_length: int):
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stated_M = (input_ids[:, 0] - 1) * BASE + input_ids[:, 1] - 1
        return input_ids.size(1) - self._prompt_length >= stated_M


def bench(asked: Rollout) -> Result:
    rows, group = asked.rows, asked.group
    if asked.prompt_length < 2:
        raise ConfigurationError(
            f"--prompt_length is {asked.prompt_length}; give at least 2 tokens, which state the "
            "length of the response"
        )
    lengths_N = lengths_in_groups(asked)
    torch.manual_seed(asked.seed)
    model: Any = model_and_tokenizer(asked)[0].eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    found = compare(
        model, lengths_N, group=group, prompt_length=asked.prompt_length, rounds=asked.rounds
    )
    (their_ids, theirs), (our_ids, _) = (one.returned[-1] for one in found.values())
    table = [
        {
            **compared(name, "s/batch", one, found[THEIRS]),
            "tokens/s": sum(lengths_N) / median(one.seconds),
            "positions": one.returned[-1][1],
        }
        for name, one in found.items()
    ]
    least = fewest([asked.prompt_length] * (rows // group), lengths_N, [False] * rows)
    title = (
        f"rollouts of {rows} completions of {sum(lengths_N) / rows:.0f} tokens (longest "
        f"{max(lengths_N)}), {asked.model}"
    )
    return title, table, {
        "completions with different tokens": int((their_ids != our_ids).any(dim=1).sum()),
        "positions of transformers, in multiples of the fewest": theirs / least,
    }  # fmt: skip


def lengths_in_groups(asked: Rollout) -> list[int]:
    """The lengths of all rows, equal in a group, with the mean that is asked for."""
    check_rows(asked.rows, group=asked.group)
    of_groups = lengths(replace(asked, rows=asked.rows // asked.group))
    return [length for length in of_groups for _ in range(asked.group)]


def compare(
    model: PreTrainedModel, lengths_N: list[int], *, group: int, prompt_length: int, rounds: int
) -> dict[str, Measured]:
    """Generate `rounds` times in both ways, after a time that is not counted; each time returns the
    tokens, and the number of positions that the model computed."""
    prompts_NS = prompts(lengths_N, group, prompt_length).to(model.device)

    def way(**how: Any):
        def once(number: int) -> tuple[torch.Tensor, int]:
            torch.manual_seed(number)
            with (positions := Positions()).of(model), torch.no_grad():
                ids = generate(model, prompts_NS, max(lengths_N), how)
            return ids, positions.total()

        return once

    ways = {THEIRS: way(), OURS: way(custom_generate=decoding.decode)}
    with replaced(decoding, BY_ROW=decoding.BY_ROW | {StatedLength}):
        return alternate(ways, rounds, warmup=1)


def generate(
    model: Any, prompts_NS: torch.Tensor, longest: int, way: dict[str, Any]
) -> torch.Tensor:
    config: Any = model.config
    ends = config.eos_token_id
    settings = GenerationConfig(
        max_new_tokens=longest,
        do_sample=True,
        top_k=0,
        suppress_tokens=ends if isinstance(ends, list) else [ends],
        eos_token_id=ends,
        pad_token_id=config.pad_token_id,
        disable_compile=True,
    )
    ids = model.generate(
        prompts_NS,
        attention_mask=torch.ones_like(prompts_NS),
        generation_config=settings,
        stopping_criteria=StoppingCriteriaList([StatedLength(prompts_NS.size(1))]),
        **way,
    )
    return ids.cpu()


def prompts(lengths_N: list[int], group: int, prompt_length: int) -> torch.Tensor:
    """`(N, S)`: a prompt for each group, which states the length of its rows."""
    stated_N = torch.tensor(lengths_N)
    draw = torch.Generator().manual_seed(0)
    prompts_PS = torch.randint(10, BASE, (len(lengths_N) // group, prompt_length), generator=draw)
    prompts_NS = prompts_PS.repeat_interleave(group, dim=0)
    prompts_NS[:, 0], prompts_NS[:, 1] = stated_N // BASE + 1, stated_N % BASE + 1
    return prompts_NS
