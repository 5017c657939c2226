"""Stop strings and minimum length, with the same meaning on every generation backend.

A completion may end once it has more than `min_tokens` tokens: at an EOS, which is not sampled
before, or at a token that completes a stop string, which stays in the completion. A stop string
completed earlier is ordinary text. vLLM does this with its `SamplingParams`. transformers only bans
the EOS, and looks for stop strings in the prompt, too; its continuous batching has neither stop
strings nor a minimum. This module adds what is missing.
"""

import copy
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import (
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.integrations import is_deepspeed_zero3_enabled

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.temporary import replaced


def backend_generation_kwargs(config: AblationConfig) -> dict[str, Any] | None:
    """`generation_kwargs` with `stop` and `min_tokens`, by the backend's names."""
    given: Any = config.generation_kwargs or {}
    stop: dict[str, Any] = {}
    if config.use_vllm and config.stop:
        # With special tokens, as transformers reads them; TRL takes token ids alone
        as_read = {"include_stop_str_in_output": True, "skip_special_tokens": False}
        stop = {"stop": config.stop, **as_read}
    name = "min_tokens" if config.use_vllm else "min_new_tokens"
    least = {name: config.min_tokens} if config.min_tokens else {}
    return {**given, **stop, **least} or None


def check_turns(trainer: Any) -> None:
    """Refuse tools, those of environments too, where a turn takes all processes: in TRL each
    process asks for as many further turns as its own completions need."""
    config = trainer.args
    if config.world_size == 1 or not trainer.tools:
        return
    asleep = config.use_vllm and config.vllm_enable_sleep_mode
    sharded = trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()
    together = {
        "vllm_mode: server": config.use_vllm and config.vllm_mode == "server",
        "vllm_tensor_parallel_size": config.use_vllm and config.vllm_tensor_parallel_size > 1,
        "sharded weights with vllm_enable_sleep_mode": sharded and asleep,
        "sharded weights without vLLM": sharded and not config.use_vllm,
    }
    for setting, given in together.items():
        if given:
            raise ConfigurationError(
                f"tools take further turns on each of {config.world_size} processes alone, and "
                f"{setting} needs all in each turn, so that they would mix completions or hang; "
                "use one process, or vllm_mode: colocate with one GPU for each engine and, if "
                "weights are sharded, vllm_enable_sleep_mode: false"
            )


@contextmanager
def evaluation_sampling(trainer: Any):
    """Until the end of the block, a trainer samples as in evaluation, on its backend.

    With vLLM, in both modes, `generation_kwargs` override everything else. transformers samples by
    the `generation_config`; `generation_kwargs` only fill in what is not set there.
    """
    config = trainer.args
    given = {"temperature": config.eval_temperature, "top_p": config.eval_top_p}
    changes: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    if config.eval_temperature == 0 and not config.use_vllm:
        changes = {"do_sample": False, "temperature": 1.0, "top_p": 1.0}
    if not changes:
        yield
        return
    engine = trainer.vllm_generation if trainer.use_vllm else trainer
    values: dict[str, Any] = {"generation_kwargs": {**engine.generation_kwargs, **changes}}
    if not trainer.use_vllm:
        values["generation_config"] = copy.deepcopy(trainer.generation_config)
        values["generation_config"].update(**changes)
    with replaced(engine, **values):
        yield


class StopStrings:
    """The strings that end a completion, applied to token ids."""

    def __init__(
        self,
        strings: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int],
        min_tokens: int = 0,
    ):
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        self._ends = frozenset((*eos_token_ids, tokenizer.pad_token_id))
        self._min_tokens = min_tokens

    def ended(self, ids: list[int], last_turn: list[int] | None = None) -> bool:
        """Whether a completion ended with EOS or a stop string, not at the length limit. A stop
        string before its `last_turn`, behind the last token of a tool, has ended an earlier one."""
        own = ids if last_turn is None else last_turn
        return bool(ids) and (ids[-1] in self._ends or self._stopped(own, self._early(own)))

    def cut(self, ids: list[int]) -> list[int]:
        """The completion up to the token that completed a stop string; all of it, if none did.
        Behind it, transformers pads a row, or continues to sample (continuous batching)."""
        early = self._early(ids)
        last = len(ids)
        while last and ids[last - 1] in self._ends:
            last -= 1
        if self._stopped(ids[:last], early):
            if not self._stopped(ids[: last - 1], early):  # as nearly always
                return ids[:last]
        elif last == len(ids) or not self._stopped(ids, early):
            return ids
        lengths = range(len(ids) + 1)
        return ids[: bisect_left(lengths, True, key=lambda n: self._stopped(ids[:n], early))]

    @contextmanager
    def known_to(self, model: Any):
        """Let transformers' `generate` end a row at a stop string."""
        if not self.strings:
            yield
            return
        with replaced(model, generate=partial(self._generate, model.generate)):
            yield

    def _generate(self, generate, **inputs):
        prompt_length = inputs["input_ids"].size(1)
        ends = StopStringCriteria(self._tokenizer, list(self.strings))
        criteria = [CompletionCriteria(ends, prompt_length, self._min_tokens)]
        return generate(**inputs, stopping_criteria=StoppingCriteriaList(criteria))

    def _stopped(self, ids: list[int], early: int) -> bool:
        """Whether a stop string ends behind the first `early` characters."""
        text = self._text(ids) if self.strings else ""
        return any(text.find(s, max(0, early - len(s) + 1)) >= 0 for s in self.strings)

    def _early(self, ids: list[int]) -> int:
        """Number of characters of the first `min_tokens` tokens, which end nothing."""
        return len(self._text(ids[: self._min_tokens])) if self._min_tokens else 0

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


class CompletionCriteria(StoppingCriteria):
    """Applies a criterion to the completion alone, and only once it exceeds a minimum length."""

    def __init__(self, criterion: StoppingCriteria, prompt_length: int, min_tokens: int):
        self._criterion = criterion
        self._prompt_length = prompt_length
        self._min_tokens = min_tokens

    def __call__(self, input_ids: Any, scores: Any, **kwargs):
        completion_ids = input_ids[:, self._prompt_length :]
        if completion_ids.size(1) <= self._min_tokens:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        return self._criterion(completion_ids, scores, **kwargs)
