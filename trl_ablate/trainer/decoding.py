"""Generation by transformers without the rows that have ended.

`generate` decodes the whole batch until its longest row has ended. Here, a row that has ended
leaves the batch and the cache, a prompt that several rows share is read once, and the forward pass
of a token is shorter where the model is small and known (`short_forward.py`), or recorded on a GPU
(`graph_forward.py`). The random numbers are drawn for all rows as `torch.multinomial` draws them,
so tokens are those of `generate`, except where two roundings of a probability choose differently.

Whatever is not known to treat each row by itself (other caches, processors, stopping criteria or
inputs) is decoded by transformers.
"""

import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, generation
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationConfig, GenerationMode

from trl_ablate.trainer.architectures import frequencies_of_the_pass
from trl_ablate.trainer.generation import CompletionCriteria
from trl_ablate.trainer.graph_forward import GraphForward, may_be_recorded
from trl_ablate.trainer.prefill import read_apart
from trl_ablate.trainer.short_forward import CACHE, ShortForward, may_be_short, packed_weights
from trl_ablate.trainer.temporary import replaced

BY_ROW = frozenset((
    CompletionCriteria, generation.EosTokenCriteria, generation.MaxLengthCriteria,
    generation.StopStringCriteria, generation.InfNanRemoveLogitsProcessor,
    generation.LogitNormalization, generation.MinLengthLogitsProcessor,
    generation.MinNewTokensLengthLogitsProcessor, generation.MinPLogitsWarper,
    generation.NoBadWordsLogitsProcessor, generation.NoRepeatNGramLogitsProcessor,
    generation.RepetitionPenaltyLogitsProcessor, generation.SuppressTokensLogitsProcessor,
    generation.TemperatureLogitsWarper, generation.TopKLogitsWarper, generation.TopPLogitsWarper,
    generation.TypicalLogitsWarper,
))  # fmt: skip
"""Processors and criteria whose result for a row depends on this row alone."""
BY_ROW_INPUTS = frozenset(("attention_mask", "position_ids"))
"""Inputs of the model with one row for each of the batch."""
ROUNDING, ROUNDING_MIXED = 1e-4, 0.12
"""How far a row's logits may be from the model's, relative to their norm. In mixed precision the
farthest of 768 rows was at 0.05 (SmolLM2), and at 1.6 when positions were off by one."""
LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
OTHERS = frozenset((CACHE, "use_cache", "logits_to_keep"))
NOT_FINITE = "probability tensor contains either `inf`, `nan` or element < 0"
"""What `torch.multinomial` raises, by which a training that diverged is known."""
LEAVE = 0.125
"""Share of the batch that has to have ended before it leaves: each time, the cache is copied."""


@contextmanager
def without_ended_rows(model: Any, autocast: Callable[..., Any], config: GenerationConfig):
    """Let the model's `generate` drop rows that have ended, where that is possible. `autocast` is
    the context of mixed precision."""
    modes = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
    plain = config.get_generation_mode() in modes and not config.return_dict_in_generate
    if not plain or config.cache_implementation is not None:
        yield
        return
    with (
        autocast(),  # each weight is cast once, not for every token
        replaced(model, generate=partial(model.generate, custom_generate=decode)),
    ):
        yield


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Any:
    """What `generate` calls in place of its own decoding; `(N, L)`, padded right."""
    if inputs.get("attention_mask", input_ids) is None:  # transformers 5.23, without padding
        inputs["attention_mask"] = torch.ones_like(input_ids)
    by_row = (
        has_rows(inputs, len(input_ids))
        and ends_by_row(stopping_criteria, logits_processor)
        and not frequencies_of_the_pass(model.config)
    )
    if not by_row or generation_config.prefill_chunk_size or inputs.keys() - BY_ROW_INPUTS - OTHERS:
        return model._sample(
            input_ids, logits_processor, stopping_criteria, generation_config, **inputs
        )
    rows = Rows(input_ids, generation_config)
    forward = ForwardPass(model, inputs)
    with model._optimize_model_for_decode(), packed_weights(model, len(rows.ids)):
        logits_MV = forward.read_prompts(rows.ids, generation_config.max_length)
        while True:
            scores_MV = logits_MV
            for process in logits_processor:  # their list would inspect each for every token
                scores_MV = process(rows.ids, scores_MV)
            rows.append(rows.chosen(scores_MV, sample=bool(generation_config.do_sample)))
            rows.going_M &= ~stopping_criteria(rows.ids, scores_MV)
            if not rows.going_M.any():
                return rows.all_ids()
            kept_M = rows.leave()
            if kept_M is not None:
                forward.keep(kept_M)
            logits_MV = forward.logits(rows.ids)


def ends_by_row(criteria: Iterable[object], processors: Iterable[object]) -> bool:
    """Whether a row's tokens and its end do not depend on the others, and padding follows."""
    known = {type(one) for one in (*processors, *criteria)} <= BY_ROW
    if any(isinstance(vars(one).get("prompt_ignore_length"), Tensor) for one in processors):
        return False  # transformers 5.23: a length for each row of the whole batch
    return known and any(isinstance(one, generation.EosTokenCriteria) for one in criteria)


def has_rows(inputs: dict[str, Any], count: int) -> bool:
    """Whether rows can be taken out of the cache, which is empty, and out of the inputs."""
    cache = inputs.get(CACHE)
    return (
        type(cache) is DynamicCache
        and all(type(layer) in LAYERS for layer in cache.layers)
        and cache.get_seq_length() == 0
        and bool(inputs.get("use_cache"))
        and all(_is_by_row(inputs[name], count) for name in BY_ROW_INPUTS & inputs.keys())
        and "attention_mask" in inputs
    )


def _is_by_row(value: Tensor, count: int) -> bool:
    """Positions of images and text, `(4, N, L)` in Qwen2-VL, are not."""
    return value.dim() == 2 and len(value) == count


class Rows:
    """The rows of a batch that are still decoded, M of N, and those that have left it."""

    def __init__(self, input_ids: Tensor, config: Any):
        count, self._length = input_ids.shape
        self._padding = int(config._pad_token_tensor)
        self._finished = input_ids.new_full((count, config.max_length), self._padding)
        self._finished[:, : self._length] = input_ids
        self._ids = self._finished.clone()
        self._places_M = torch.arange(count, device=input_ids.device)
        self.going_M = torch.ones(count, dtype=torch.bool, device=input_ids.device)

    @property
    def ids(self) -> Tensor:
        """Prompts and completions so far, `(M, L)`."""
        return self._ids[:, : self._length]

    def chosen(self, scores_MV: Tensor, *, sample: bool) -> Tensor:
        """The next token of each row. `torch.multinomial` divides by a draw for each probability
        and takes the largest; the draws are made for all N rows, so that a row has its own."""
        if not sample:
            return scores_MV.argmax(dim=-1)
        p_MV = scores_MV.softmax(dim=-1)
        if not p_MV.max() < torch.inf:  # nan is not
            raise RuntimeError(NOT_FINITE)
        draws_MV = exponential_draws(p_MV, len(self._finished), self._places_M)
        return (p_MV / draws_MV).argmax(dim=-1)

    def append(self, tokens_M: Tensor) -> None:
        """Add a token to each row; padding, if the row has ended."""
        self._ids[:, self._length] = tokens_M.where(self.going_M, self._padding)
        self._length += 1

    def leave(self) -> Tensor | None:
        """Let the rows that have ended leave, if they are enough; the places of those that stay."""
        ended_M = ~self.going_M
        if ended_M.sum() < max(1, LEAVE * len(ended_M)):
            return None
        self._finished[self._places_M[ended_M]] = self._ids[ended_M]
        (kept,) = self.going_M.nonzero(as_tuple=True)
        self._ids, self._places_M = self._ids[kept], self._places_M[kept]
        self.going_M = self.going_M[kept]
        return kept

    def all_ids(self) -> Tensor:
        """All N rows, as wide as the longest."""
        self._finished[self._places_M] = self._ids
        return self._finished[:, : self._length]


def repeats(ids_NL: Tensor, mask_NL: Tensor) -> int:
    """How many rows in succession have the same prompt, if these are equally many of each."""
    same = (ids_NL[1:] == ids_NL[:-1]).all(dim=1) & (mask_NL[1:] == mask_NL[:-1]).all(dim=1)
    starts = [0, *((~same).nonzero().flatten() + 1).tolist(), len(ids_NL)]
    (first, *others) = [after - start for start, after in zip(starts, starts[1:], strict=False)]
    return first if all(one == first for one in others) else 1


class ForwardPass:
    """The model's own forward pass for the prompts and the first token, and from then on
    `ShortForward` or `GraphForward`, if there is one for the model, and it computed the same logits
    up to rounding."""

    def __init__(self, model: Any, inputs: dict[str, Any]):
        self._model, self._inputs = model, inputs
        self._short: ShortForward | GraphForward | None = None
        self._compared = False

    def read_prompts(self, ids_NL: Tensor, longest: int) -> Tensor:
        """Read one of the rows in succession that have the same prompt; none will be longer than
        `longest`."""
        times = repeats(ids_NL, self._inputs["attention_mask"])
        once = {
            name: value[::times] if name in BY_ROW_INPUTS else value
            for name, value in self._inputs.items()
        }
        short = may_be_short(self._model, once)
        read = read_apart(self._model, ids_NL[::times], once) if short else None
        if read is None:
            outputs, logits_NV = self._pass(ids_NL[::times], once, is_first_iteration=True)
            cache = outputs[CACHE]
        else:
            outputs, cache, (logits_NV, mask_NL) = {}, once[CACHE], read
            self._inputs["attention_mask"] = mask_NL.repeat_interleave(times, dim=0)
        if times > 1:
            cache.batch_repeat_interleave(times)
            logits_NV = logits_NV.repeat_interleave(times, dim=0)
        self._inputs = self._model._update_model_kwargs_for_generation(outputs, self._inputs)
        if short:
            self._short = ShortForward(self._model, self._inputs, longest)
        elif may_be_recorded(self._model, self._inputs, longest):
            self._short = GraphForward(self._model, self._inputs, longest)
        return logits_NV

    def logits(self, ids_ML: Tensor) -> Tensor:
        if self._short is not None and self._compared:
            return self._short.logits(ids_ML)
        outputs, logits_MV = self._pass(ids_ML, self._inputs, next_sequence_length=1)
        self._inputs = self._model._update_model_kwargs_for_generation(outputs, self._inputs)
        if self._short is not None:
            device, dtype = self._model.device.type, self._model.dtype
            mixed = torch.is_autocast_enabled(device) or dtype != torch.float32
            rounding = ROUNDING_MIXED if mixed else ROUNDING
            apart_M = (self._short.logits(ids_ML) - logits_MV).norm(dim=-1)
            if not (apart_M <= rounding * logits_MV.norm(dim=-1)).all():
                warnings.warn("the short forward pass differs: decoding is slower", stacklevel=2)
                self._short = None
            else:
                self._inputs = {}  # the short pass has its own cache
            self._compared = True
        return logits_MV

    def _pass(self, ids_ML: Tensor, inputs: dict[str, Any], **how: Any) -> tuple[Any, Tensor]:
        step = self._model.prepare_inputs_for_generation(ids_ML, **how, **inputs)
        outputs = self._model(**step, return_dict=True)
        return outputs, outputs.logits[:, -1].to(torch.float32, copy=True)  # the whole may be large

    def keep(self, kept_M: Tensor) -> None:
        if self._short is not None:
            self._short.keep(kept_M)
        if self._short is None or not self._compared:
            self._inputs[CACHE].batch_select_indices(kept_M)
            for name in BY_ROW_INPUTS & self._inputs.keys():
                self._inputs[name] = self._inputs[name][kept_M]


def exponential_draws(like_MV: Tensor, count: int, places_M: Tensor) -> Tensor:
    """Exponential draws for the rows `places_M` of `count` rows, `(M, V)`.

    A batch that rows have left still takes the draws of all of them, so that a row has its own
    draws and the generator ends in the same state. On a CPU, torch makes a draw of one float64 that
    is uniform; the uniform ones of all rows, and the logarithms of the rows that remain, take a
    quarter of the time.
    """
    width = like_MV.size(1)
    if like_MV.device.type != "cpu" or not made_of_uniform_draws():
        return like_MV.new_empty(count, width).exponential_(1)[places_M]
    uniform_NV = torch.empty(count, width, dtype=torch.float64).uniform_()
    uniform_MV = uniform_NV if len(places_M) == count else uniform_NV[places_M]
    return uniform_MV.neg_().log1p_().neg_().to(like_MV.dtype)


@cache
def made_of_uniform_draws() -> bool:
    """Whether this build of torch makes exponential draws as described above."""
    seed, count = 0, 5000  # enough for the code that works on many numbers at once
    one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
    draws = torch.empty(count).exponential_(1, generator=one)
    uniform = torch.empty(count, dtype=torch.float64).uniform_(generator=other)
    same = torch.equal(draws, uniform.neg_().log1p_().neg_().float())
    return same and torch.equal(one.get_state(), other.get_state())
