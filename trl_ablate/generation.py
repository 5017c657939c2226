"""Stop strings and minimum length on every generation backend.

TRL hands `generation_kwargs` to vLLM's `SamplingParams` or to transformers' `GenerationConfig`, which
name the same things differently, and gives `generate` no tokenizer, without which transformers cannot
look for a stop string.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from trl_ablate.config import AblationConfig


def backend_generation_kwargs(config: AblationConfig) -> dict[str, Any] | None:
    """`generation_kwargs` with `stop` and `min_tokens` in the words of the backend."""
    if config.use_vllm:
        stop = {"stop": config.stop, "include_stop_str_in_output": True} if config.stop else {}
        least = {"min_tokens": config.min_tokens} if config.min_tokens else {}
    else:
        stop = {"stop_strings": config.stop} if config.stop else {}
        least = {"min_new_tokens": config.min_tokens} if config.min_tokens else {}
    return {**(config.generation_kwargs or {}), **stop, **least} or None


class StopStrings:
    """The strings that end a completion, and what follows from them for token ids."""

    def __init__(
        self,
        strings: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int],
    ):
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        self._ends = frozenset((*eos_token_ids, tokenizer.pad_token_id))

    def ended(self, ids: list[int]) -> bool:
        """Whether a completion came to its end, by EOS or by a stop string, rather than by the limit."""
        return bool(ids) and (ids[-1] in self._ends or self._stopped(ids))

    def trimmed(self, ids: list[int]) -> list[int]:
        """Without the padding (or the EOS that padding was taken for) behind a stop string.

        transformers pads a row that has stopped until the whole batch is done; the policy sampled
        none of that.
        """
        if not self.strings or not ids or ids[-1] not in self._ends:
            return ids
        end = len(ids)
        while end and ids[end - 1] in self._ends:
            end -= 1
        return ids[:end] if self._stopped(ids[:end]) else ids

    @contextmanager
    def known_to(self, model_wrapped, accelerator: Accelerator):
        """Give `generate` the tokenizer it needs to look for the strings."""
        if not self.strings:
            yield
            return
        model = accelerator.unwrap_model(model_wrapped)
        model.generate = partial(model.generate, tokenizer=self._tokenizer)
        try:
            yield
        finally:
            del model.generate

    def _stopped(self, ids: list[int]) -> bool:
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return any(string in text for string in self.strings)
