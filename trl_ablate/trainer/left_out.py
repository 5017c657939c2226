"""What rows that take no part in the loss do to TRL's own means, and how that is put right."""

import math
from contextlib import contextmanager
from typing import Any

import torch

from trl_ablate.trainer.batching import BONUS_WEIGHTS, Batch, response_mask
from trl_ablate.trainer.loss_pass import LossPass
from trl_ablate.trainer.rollouts import Setting
from trl_ablate.trainer.temporary import replaced

MEANS_OF_TOKENS = (
    "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
    "cispo_clip_ratio",
)  # fmt: skip
"""What TRL logs of each microbatch as a mean over its tokens, or rows: 0 if it has none."""


@contextmanager
def means_of_kept_rows(setting: Setting, call: LossPass):
    """Of TRL's means over a microbatch, those that are logged within the block are NaN if all rows
    are left out, which its mean leaves out. What has one value a row is one over the rows that
    stay."""
    if not (setting.training and setting.config.leaves_rows_out):
        yield
        return
    before = {name: len(values) for name, values in setting.metrics.items()}
    yield
    mask_NT, kept_N = call.mask_NT, call.mask_NT.any(dim=1)
    sums = [mask_NT.sum(), kept_N.sum(), mask_NT.new_tensor(len(mask_NT))]
    if setting.config.loss_type == "vespo":
        sums.append(call.vespo_weight()[kept_N].sum())
    tokens, kept, rows, *phi = setting.total(torch.stack([one.float() for one in sums])).tolist()
    of_tokens, of_rows = 1.0 if tokens else math.nan, rows / kept if kept else math.nan
    a_value_each = call.level == "sequence" and call.shown["advantages"].numel() == len(mask_NT)
    for name in MEANS_OF_TOKENS:
        values = setting.metrics.get(name, [])
        if len(values) > before.get(name, 0):
            values[-1] *= of_rows if a_value_each and "clip" in name else of_tokens
    if phi:
        setting.metrics["vespo/phi_seq_mean"][-1] = phi[0] / kept if kept else math.nan
    elif a_value_each and setting.metrics.get("clip_ratio/low_min"):  # of zeros and ones
        share = setting.metrics["clip_ratio/low_mean"][-1]
        setting.metrics["clip_ratio/low_min"][-1] = float(share > 1 - 1e-6) if kept else math.nan
        setting.metrics["clip_ratio/high_max"][-1] *= of_tokens


@contextmanager
def bonus_of_kept_groups(trainer: Any, inputs: Batch):
    """Within the block, TRL's mean of the entropy bonus over all microbatches is one over those
    that have a kept group.

    This takes a factor for the coefficient. So that TRL's control of an adaptive coefficient goes
    on, its step and its bounds are in the same unit. A step without tokens does not move it.
    """
    if not (trainer.model.training and BONUS_WEIGHTS in inputs):
        yield
        return
    args, own, entropy = trainer.args, trainer.entropy_coef, trainer._last_world_entropy
    tokens, window = response_mask(inputs).sum(), trainer._entropy_window_stats
    tokens = tokens if window is None else tokens + window[1]
    factor = inputs[BONUS_WEIGHTS][0].item()  # the same in all rows
    scaled = ("entropy_coef_delta", "entropy_coef_min", "entropy_coef_max")
    with replaced(args, **{name: getattr(args, name) * factor for name in scaled}):
        trainer.entropy_coef = raised = own * factor
        try:
            yield
        finally:
            now = trainer.entropy_coef
            trainer.entropy_coef = own if now == raised else now / factor
    if trainer.accelerator.sync_gradients:
        if args.use_adaptive_entropy and trainer.accelerator.reduce(tokens, reduction="sum") == 0:
            trainer.entropy_coef, trainer._last_world_entropy = own, entropy  # none was measured
        trainer._metrics["train"]["entropy_coef"][-1] = trainer.entropy_coef
