"""A sampler that differs from the policy: older weights, weights of another type, fewer tokens.

While rollouts are generated, the parameters hold the sampler's values; TRL's engine sync takes
them, too. The sampler's log-probabilities of the completions are kept, so that TRL's importance
correction applies, also without vLLM. With `correct_truncation` they are those of the distribution
that top_p, top_k and min_p leave. What else changes how tokens are drawn, as min_tokens does, stays
uncorrected, as without a sampler that differs, so that an arm with one differs in it alone.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from trl.trainer.utils import pad, selective_log_softmax

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.rounding import rounded

FILE = "sampler_weights.safetensors"
Weights = dict[str, Tensor]


class Sampler:
    def __init__(self, config: AblationConfig):
        self._staleness, self._dtype = config.rollout_staleness, config.sampler_dtype
        self._kept: deque[Weights] = deque(maxlen=self._staleness + 1)
        """Copies at the start of the last GRPO steps, the oldest first."""
        self._kept_at = -1
        """Microbatches done when the last copy was made; several calls in a step make one."""

    @contextmanager
    def weights_in(self, model: Any, step: int, *, sharded: bool):
        """Until the end of the block, the model's parameters hold the sampler's values; those that
        are not trained are rounded, but not kept. `step`: microbatches done so far."""
        if sharded:
            raise ConfigurationError(
                "rollout_staleness and sampler_dtype exchange whole weights, which FSDP and "
                "DeepSpeed shard; use DDP or one process"
            )
        parameters = {n: one for n, one in model.named_parameters() if one.is_floating_point()}
        if self._staleness and step != self._kept_at:
            trained = {name: one for name, one in parameters.items() if one.requires_grad}
            self._kept.append({name: one.detach().cpu().clone() for name, one in trained.items()})
            self._kept_at = step
        kept = self._kept[0] if self._staleness else {}
        own = {name: one.data for name, one in parameters.items()}
        try:
            for name, one in parameters.items():
                value = kept[name].to(one.device) if name in kept else one.data
                one.data = rounded(value, self._dtype) if self._dtype else value
            yield
        finally:
            for name, one in parameters.items():
                one.data = own[name]

    def save(self, checkpoint: Path) -> None:
        """Write the kept copies into a checkpoint; one process calls this."""
        if self._kept:
            steps = enumerate(self._kept)
            tensors = {
                f"{place}.{name}": one for place, kept in steps for name, one in kept.items()
            }
            save_file(tensors, checkpoint / FILE)

    def restore(self, checkpoint: Path) -> None:
        file = checkpoint / FILE
        if not self._staleness:
            return
        if not file.exists():
            raise ConfigurationError(
                f"{file} does not exist: the weights of earlier steps, which rollout_staleness "
                f"{self._staleness} needs, were not saved; start over with --overwrite"
            )
        kept: dict[int, Weights] = {}
        for key, tensor in load_file(file).items():
            place, _, name = key.partition(".")
            kept.setdefault(int(place), {})[name] = tensor
        self._kept.extend(kept[place] for place in sorted(kept))


def check_sampled_here(config: AblationConfig, rollout_func: Any) -> None:
    """Refuse a `rollout_func`: what it samples is not by the sampler's weights, and has the
    log-probabilities that it reports, if any."""
    if rollout_func and (config.exchanges_weights or config.corrects_without_engine):
        names = ("rollout_staleness", "sampler_dtype", "correct_truncation")
        given = {name: value for name in names if (value := getattr(config, name))}
        raise ConfigurationError(
            "rollout_func samples by itself, without regard to "
            f"{' and '.join(f'{name} {value}' for name, value in given.items())}; remove "
            f"{' and '.join(given)}, or rollout_func"
        )


def check_text(images: Any) -> None:
    """Refuse images: the sampler's log-probabilities are computed from tokens alone."""
    if images is not None:
        raise ConfigurationError(
            "rollout_staleness, sampler_dtype and correct_truncation are for text only, but a "
            "prompt has images; set rollout_staleness to 0, sampler_dtype to null and "
            "correct_truncation to false"
        )


def sampler_logps(
    forward: Callable[[Tensor, Tensor, int], Tensor],
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    padding: int,
    device: torch.device,
) -> list[list[float]]:
    """The sampler's log-probability of each token, by `forward(ids, mask, completion_length)`."""
    prompts, completions = (
        [torch.tensor(ids, device=device, dtype=torch.long) for ids in rows]
        for rows in (prompt_ids, completion_ids)
    )
    ids_NL = torch.cat([pad(prompts, padding, "left"), pad(completions, padding)], dim=1)
    of_prompts, of_completions = map(torch.ones_like, prompts), map(torch.ones_like, completions)
    mask_NL = torch.cat([pad(list(of_prompts), 0, "left"), pad(list(of_completions), 0)], dim=1)
    widest = max(1, *map(len, completion_ids))
    with torch.no_grad():
        logps_NT = forward(ids_NL, mask_NL, widest)
    return [row[: len(ids)] for row, ids in zip(logps_NT.tolist(), completion_ids, strict=True)]


def forward_truncated(
    model: Any,
    args: AblationConfig,
    ends: Sequence[int],
    ids_NL: Tensor,
    mask_NL: Tensor,
    width: int,
) -> Tensor:
    """Log-probabilities under the truncated distribution, `(N, width)`; `ends` are the ids of
    EOS."""
    size, found = args.per_device_train_batch_size, []
    for ids, mask in zip(ids_NL.split(size), mask_NL.split(size), strict=True):
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=width + 1).logits
        logits_NTV, ids_NT = logits[:, :-1].float() / args.temperature, ids[:, -width:]
        logps_NT = selective_log_softmax(logits_NTV, ids_NT)
        # Z is that of the tokens that may be drawn; that some may not is itself not corrected
        logits_NTV[:, : args.min_tokens, list(ends)] = -torch.inf
        truncated_NT = truncated_logps(
            logits_NTV, ids_NT, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p
        )
        found.append(logps_NT - selective_log_softmax(logits_NTV, ids_NT) + truncated_NT)
    return torch.cat(found)


def truncated_logps(
    logits_NTV: Tensor,
    ids_NT: Tensor,
    *,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float | None = None,
) -> Tensor:
    """Log-probability of each token under the truncated distribution, `(N, T)`.

    With Z the probability of the tokens that are kept, by transformers' own rules in its order, it
    is log p - log Z, so the ratio of the policy to the sampler is Z. A token that was sampled but
    is not kept here, as two forward passes differ by rounding, has its log p: a ratio of 1.
    """
    rules: Any = LogitsProcessorList()
    if top_k:
        rules.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        rules.append(TopPLogitsWarper(top_p))
    if min_p:
        rules.append(MinPLogitsWarper(min_p))
    flat_MV, ids_M1 = logits_NTV.flatten(0, 1), ids_NT.reshape(-1, 1)
    kept_M1 = rules(ids_M1, flat_MV).log_softmax(-1).gather(1, ids_M1)
    whole_M1 = flat_MV.log_softmax(-1).gather(1, ids_M1)
    return torch.where(kept_M1.isneginf(), whole_M1, kept_M1).view(ids_NT.shape)
