"""A sampler that differs from the policy: older weights, weights of another type, fewer tokens.

While rollouts are generated, the parameters hold the sampler's values; TRL's engine sync takes
them, too. Parameters that are not trained are rounded, but not kept. The sampler's
log-probabilities of the completions are kept, so that TRL's importance correction applies, also
without vLLM. With `correct_truncation` they are those of the distribution that top_p, top_k and
min_p leave. What else changes how tokens are drawn, as min_tokens does, stays uncorrected, as
without a sampler that differs, so that an arm with one differs in it alone. vLLM reports the
log-probabilities of the distribution that it draws from, in all arms.

The kept copies of a checkpoint are in one file, as all processes have the same.
"""

from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from transformers import LogitsProcessorList
from transformers.generation import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from trl.trainer.utils import selective_log_softmax

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.rounding import rounded
from trl_ablate.trainer.batching import Batch

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

FILE = "sampler_weights.safetensors"
Weights = dict[str, torch.Tensor]


class Sampler:
    """The sampler's weights of one trainer."""

    def __init__(self, config: AblationConfig):
        self._staleness = config.rollout_staleness
        self._dtype = config.sampler_dtype
        self._exchanges = config.exchanges_weights
        self.differs = config.sampler_differs
        self._kept: deque[Weights] = deque(maxlen=self._staleness + 1)
        """Copies at the start of the last GRPO steps, the oldest first."""
        self._kept_at = -1
        """Microbatches done when the last copy was made; several calls in a step make one."""

    @contextmanager
    def weights_of(self, trainer: "AblationTrainer"):
        """Until the end of the block, the parameters hold the sampler's values."""
        if not (self._exchanges and trainer.model.training):
            yield
            return
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigurationError(
                "rollout_staleness and sampler_dtype exchange whole weights, which FSDP and "
                "DeepSpeed shard; use DDP or one process"
            )
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        parameters = {n: one for n, one in model.named_parameters() if one.is_floating_point()}
        if self._staleness and trainer._step != self._kept_at:
            trained = {name: one for name, one in parameters.items() if one.requires_grad}
            self._kept.append({name: one.detach().cpu().clone() for name, one in trained.items()})
            self._kept_at = trainer._step
        kept = self._kept[0] if self._staleness else {}
        own = {name: one.data for name, one in parameters.items()}
        for name, one in parameters.items():
            value = kept[name].to(one.device) if name in kept else one.data
            one.data = rounded(value, self._dtype) if self._dtype else value
        try:
            yield
        finally:
            for name, one in parameters.items():
                one.data = own[name]
            trainer._last_loaded_step = -1  # so that an engine loads the policy for evaluation

    def save(self, trainer: "AblationTrainer", checkpoint: Path) -> None:
        """Write the kept copies into a checkpoint; one process does."""
        if self._kept and trainer.args.should_save:
            tensors = {
                f"{place}.{name}": tensor
                for place, weights in enumerate(self._kept)
                for name, tensor in weights.items()
            }
            save_file(tensors, checkpoint / FILE)

    def restore(self, checkpoint: Path) -> None:
        """Read what `save` has written."""
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


def check_text(images: Any) -> None:
    """Refuse images: the sampler's log-probabilities are computed from tokens alone."""
    if images is not None:
        raise ConfigurationError(
            "rollout_staleness, sampler_dtype and correct_truncation are for text only, but a "
            "prompt has images; set rollout_staleness to 0, sampler_dtype to null and "
            "correct_truncation to false"
        )


def sampler_logps(
    trainer: "AblationTrainer", prompt_ids: list[list[int]], completion_ids: list[list[int]]
) -> list[list[float]]:
    """The sampler's log-probability of each token; call it while its weights are in place."""
    ids_NL, mask_NL = _padded(trainer, prompt_ids, completion_ids)
    widest = max(1, *map(len, completion_ids))
    batch = trainer.args.per_device_train_batch_size
    with torch.no_grad():
        if trainer.args.truncates and trainer.args.correct_truncation:
            parts = zip(ids_NL.split(batch), mask_NL.split(batch), strict=True)
            logps_NT = torch.cat([_of_truncated(trainer, *part, widest) for part in parts])
        else:
            logps_NT = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids_NL, mask_NL, widest, batch_size=batch
            )[0]
    return [row[: len(ids)] for row, ids in zip(logps_NT.tolist(), completion_ids, strict=True)]


def _padded(
    trainer: "AblationTrainer", prompt_ids: list[list[int]], completion_ids: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts and completions as rows of ids and of their mask; prompts end in one column."""
    device, padding = trainer.accelerator.device, trainer._tokenizer.pad_token_id
    widest, longest = max(1, *map(len, completion_ids)), max(map(len, prompt_ids))
    rows, masks = [], []
    for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
        left, right = longest - len(prompt), widest - len(completion)
        rows.append([padding] * left + [*prompt, *completion] + [padding] * right)
        masks.append([0] * left + [1] * (len(prompt) + len(completion)) + [0] * right)
    return torch.tensor(rows, device=device), torch.tensor(masks, device=device)


def _of_truncated(
    trainer: "AblationTrainer", ids_NL: torch.Tensor, mask_NL: torch.Tensor, width: int
) -> torch.Tensor:
    args, model = trainer.args, cast(Any, trainer.model)
    with trainer.accelerator.autocast():
        logits = model(input_ids=ids_NL, attention_mask=mask_NL, logits_to_keep=width + 1).logits
    logits_NTV, ids_NT = logits[:, :-1].float() / args.temperature, ids_NL[:, -width:]
    logps_NT = selective_log_softmax(logits_NTV, ids_NT)
    # Z is that of the tokens that may be drawn; that some may not is itself not corrected
    logits_NTV[:, : args.min_tokens, trainer.eos_token_ids] = -torch.inf
    truncated_NT = truncated_logps(
        logits_NTV, ids_NT, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p
    )
    return logps_NT - selective_log_softmax(logits_NTV, ids_NT) + truncated_NT


def truncated_logps(
    logits_NTV: torch.Tensor,
    ids_NT: torch.Tensor,
    *,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float | None = None,
) -> torch.Tensor:
    """Log-probability of each token under the truncated distribution, `(N, T)`.

    With Z the probability of the tokens that are kept, it is log p - log Z, so the ratio of the
    policy to the sampler is Z. The tokens are kept by transformers' own rules, in its order: top_k,
    top_p, min_p. A token that was sampled but is not kept here, as two forward passes differ by
    rounding, has its log p: a ratio of 1.
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


def needs_ratio(trainer: "AblationTrainer", batch: Batch) -> bool:
    """Whether the importance ratio is still missing: without vLLM, TRL computes none, and the loss
    computes it only in an update of the policy that is corrected from its own forward pass."""
    corrected = trainer.args.corrects_without_engine and trainer.model.training
    return corrected and "old_per_token_logps" in batch and "importance_sampling_ratio" not in batch
