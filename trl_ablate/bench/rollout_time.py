"""Rollouts by transformers: its own decoding against ours, which drops rows that have ended.

Both generate the same tokens of a random model, alternately for several rounds. A row ends at a
length that its prompt states, so that any distribution of lengths can be measured.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from trl_ablate.bench.synthetic import lengths
from trl_ablate.bench.tables import median, ratio, spread
from trl_ablate.trainer import decoding
from trl_ablate.trainer.temporary import replaced

BASE = 64
"""The prompt states a length by its first two tokens, as digits of a number in this base."""

DISTRIBUTIONS = {"miniature": (19.0, 48), "long tail": (343.0, 1024), "equal": (128.0, 128)}
"""Mean and largest length of the completions."""


class StatedLength(StoppingCriteria):
    """Ends a row at the length that its prompt states."""

    def __init__(self, prompt_length: int):
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stated_M = (input_ids[:, 0] - 1) * BASE + input_ids[:, 1] - 1
        return input_ids.size(1) - self._prompt_length >= stated_M


@dataclass
class Rollouts:
    """Seconds of each round, and the tokens of the last."""

    seconds: list[float] = field(default_factory=list)
    ids: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def compare(
    model: PreTrainedModel, lengths_N: list[int], *, group: int, prompt_length: int, rounds: int
) -> dict[str, Rollouts]:
    """Generate `rounds` times with each, after a first time that is not counted."""
    ways: dict[str, dict[str, Any]] = {
        "transformers": {},
        "trl_ablate": {"custom_generate": decoding.decode},
    }
    prompts_NS = prompts(lengths_N, group, prompt_length).to(model.device)
    found = {name: Rollouts() for name in ways}
    with replaced(decoding, BY_ROW=decoding.BY_ROW | {StatedLength}):
        for number in range(rounds + 1):
            for name, way in ways.items():
                torch.manual_seed(number)
                began = time.perf_counter()
                found[name].ids = generate(model, prompts_NS, max(lengths_N), way)
                if number:
                    found[name].seconds.append(time.perf_counter() - began)
    return found


def generate(
    model: Any, prompts_NS: torch.Tensor, longest: int, way: dict[str, Any]
) -> torch.Tensor:
    config: Any = model.config
    settings = GenerationConfig(
        max_new_tokens=longest,
        do_sample=True,
        top_k=0,
        suppress_tokens=[config.eos_token_id],
        eos_token_id=config.eos_token_id,
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


def rows_of(name: str, found: dict[str, Rollouts], tokens: int) -> list[dict[str, Any]]:
    """The table: seconds of a rollout batch, their spread, and the ratio of each round."""
    first = found["transformers"]
    return [
        {
            "what": f"{name}, {way}",
            "s/batch": median(one.seconds),
            "spread": spread(one.seconds),
            "ratio": ratio(first.seconds, one.seconds),
            "tokens/s": tokens / median(one.seconds),
        }
        for way, one in found.items()
    ]


def lengths_of(name: str, rows: int, group: int, seed: int) -> list[int]:
    """The rows of a group share a prompt, which states their length."""
    mean, cap = DISTRIBUTIONS[name]
    drawn = [cap] * rows if mean == cap else lengths(rows, mean, cap, seed)
    return [length for length in drawn[::group] for _ in range(group)]
