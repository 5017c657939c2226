"""Rollouts by transformers: its own decoding against ours, which drops rows that have ended.

Both generate the same tokens of a random model, alternately for several rounds. A row ends at a
length that its prompt states, so that any distribution of lengths can be measured.
"""

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from trl_ablate import miniature
from trl_ablate.bench.synthetic import lengths, random_model
from trl_ablate.bench.tables import median
from trl_ablate.bench.timing import OURS, Result, alternate, timed
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


def bench(*, model_shape: str, rows: int, group: int, seed: int, **sizes: Any) -> Result:
    """What `trl-ablate bench rollout` publishes."""
    torch.manual_seed(seed)
    model: Any = random_model(model_shape, miniature.tokenizer()).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    table, differing = [], 0
    for name in DISTRIBUTIONS:
        lengths_N = lengths_of(name, rows, group, seed)
        seconds, ids = compare(model, lengths_N, group=group, **sizes)
        table += rows_of(name, seconds, sum(lengths_N))
        theirs, ours = (each[-1] for each in ids.values())
        differing += int((theirs != ours).any(dim=1).sum())
    title = f"rollouts of {rows} completions, {model_shape}"
    return title, table, {"completions with different tokens": differing}


def compare(
    model: PreTrainedModel, lengths_N: list[int], *, group: int, prompt_length: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[torch.Tensor]]]:
    """Generate `rounds` times in both ways, after a time that is not counted: seconds, tokens."""
    prompts_NS = prompts(lengths_N, group, prompt_length).to(model.device)

    def way(**how: Any):
        def once(number: int) -> torch.Tensor:
            torch.manual_seed(number)
            return generate(model, prompts_NS, max(lengths_N), how)

        return once

    ways = {"transformers": way(), OURS: way(custom_generate=decoding.decode)}
    with replaced(decoding, BY_ROW=decoding.BY_ROW | {StatedLength}):
        return alternate(ways, rounds, warmup=1)


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


def rows_of(name: str, seconds: dict[str, list[float]], tokens: int) -> list[dict[str, Any]]:
    """The table: seconds of a rollout batch, their spread, and the ratio of each round."""
    return [
        {
            **timed(f"{name}, {way}", "s/batch", taken, seconds["transformers"]),
            "tokens/s": tokens / median(taken),
        }
        for way, taken in seconds.items()
    ]


def lengths_of(name: str, rows: int, group: int, seed: int) -> list[int]:
    """The rows of a group share a prompt, which states their length."""
    mean, cap = DISTRIBUTIONS[name]
    drawn = [cap] * rows if mean == cap else lengths(rows, mean, cap, seed)
    return [length for length in drawn[::group] for _ in range(group)]
