"""Save and restore the trainer's state that TRL's checkpoints do not contain.

Resuming with exactly the same results needs the sums since the last logged row, the adaptive
entropy coefficient, the number of microbatches so far, a reference model that follows the policy
and, in the middle of a rollout batch, this batch. Each process writes its own state into the
checkpoint, as plain values and tensors. Images and other values in the log of completions that are
not plain are None after resuming, until the next batch.
"""

import logging
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model, send_to_device
from datasets import IterableDataset
from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers import PreTrainedModel, trainer_utils
from transformers import trainer as transformers_trainer

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.checkpoints import break_seal, seal
from trl_ablate.run.directory import is_checkpoint
from trl_ablate.trainer.temporary import replaced

logger = logging.getLogger(__name__)

REFERENCE = "reference.safetensors"
VALUES = (
    "_step",  # microbatches so far; TRL uses it to decide when to generate
    "_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "entropy_coef",
    "_last_world_entropy", "generated_tokens",
)  # fmt: skip
"""Attributes of the trainer whose value is a number or a tensor with one number."""
LAYOUT = (
    "world_size", "per_device_train_batch_size", "gradient_accumulation_steps",
    "steps_per_generation", "num_iterations", "num_generations",
)  # fmt: skip
"""Settings that must be unchanged for the saved state to be valid."""


@contextmanager
def sealed(trainer: Any, checkpoint: Path):
    """While TRL writes a checkpoint: remove its seal first; at the end add our state, and seal."""
    if trainer.args.should_save:
        break_seal(checkpoint)
    yield
    if not trainer.args.save_only_model:
        save(trainer, checkpoint)
    trainer.accelerator.wait_for_everyone()
    if trainer.args.should_save:
        seal(checkpoint)


def save(trainer: Any, checkpoint: Path) -> None:
    """Write the state of this process, and the reference model if it follows the policy."""
    torch.save(_carried(trainer), _file(trainer, checkpoint))
    if not trainer.args.should_save:
        return
    trainer.sampler.save(checkpoint)
    if trainer.args.sync_ref_model and not trainer._is_sharded():
        save_model(trainer.accelerator.unwrap_model(trainer.ref_model), str(checkpoint / REFERENCE))


def restore(trainer: Any, checkpoint: Path) -> None:
    """Restore what `save` has written. Call this after TRL has initialised its own counters."""
    if trainer.args.sync_ref_model:
        reference = checkpoint / REFERENCE
        if not reference.exists():
            raise ConfigurationError(
                f"{reference} does not exist: the updated reference model of sync_ref_model was "
                "not saved (with FSDP and DeepSpeed it never is); start over with --overwrite, or "
                "set sync_ref_model to false to continue with the reference model of the start"
            )
        load_model(trainer.accelerator.unwrap_model(trainer.ref_model), reference)
    trainer.sampler.restore(checkpoint)
    own = file = _file(trainer, checkpoint)
    if not own.exists():  # more processes than wrote it: the counters are the same in every file
        file = min(checkpoint.glob("carried_*.pt"), default=own)
    if not file.exists():
        logger.warning(
            "%s does not exist: the next logged row may differ from that of a run that was not "
            "stopped",
            file,
        )
        return
    carried = torch.load(file, map_location="cpu", weights_only=True)
    trainer.generated_tokens = carried["values"].get("generated_tokens", 0)
    trainer.idle_steps.skipped = carried.get("skipped_steps", 0)
    if file != own or carried["layout"] != _layout(trainer):
        logger.warning(
            "%s was written with %s, but this run has %s: its rollouts and its next logged row "
            "differ from those of a run that was not stopped",
            *(file, carried["layout"], _layout(trainer)),
        )
        steps, every = carried["values"]["_step"], _steps_per_rollout(trainer)
        trainer._step = -(-steps // every) * every  # draws are seeded by it
        return
    _restore_state(trainer, carried)


def tied_weights_known(model: Any) -> AbstractContextManager[None]:
    """Of two tied weights, a checkpoint has one; transformers warns that the other is missing."""
    tied = sorted(model.all_tied_weights_keys) if isinstance(model, PreTrainedModel) else []
    return replaced(model, _keys_to_ignore_on_save=tied) if tied else nullcontext()


@cache
def load_onto_numbered_cpus() -> None:
    """Let torch load tensors to "cpu:1": with several processes, accelerate numbers the CPUs."""

    def onto(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(11, lambda storage: None, onto)


def skip_epochs(trainer: Any, epochs: int) -> None:
    """Advance the order of the questions by the given number of epochs.

    TRL's sampler draws an order at the start of every epoch, from one generator. When resuming,
    transformers skips batches of the current epoch, but does not draw the orders of earlier ones.
    """
    if isinstance(trainer.train_dataset, IterableDataset):
        if trainer.state.epoch >= 1:
            logger.warning(
                "the training set is a stream, so resuming is exact only in the first epoch: the "
                "order of the next questions differs from that of a run that was not stopped"
            )
        return
    for _ in range(epochs):
        next(iter(trainer.train_sampler), None)


def load_trained_adapter(trainer: Any, checkpoint: str) -> None:
    """Load the trained adapter if TRL has added a copy of it as the reference: then transformers
    loads only the copy, from its folder in the checkpoint."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if is_peft_model(model) and "ref" in model.peft_config:
        model.load_adapter(checkpoint, model.active_adapters[0], is_trainable=True)


def _carried(trainer: Any) -> dict[str, Any]:
    carried = {
        "layout": _layout(trainer),
        "values": {name: vars(trainer)[name] for name in VALUES},
        "metrics": {
            name: list(map(float, values)) for name, values in trainer._metrics["train"].items()
        },
        "ratio_sums": trainer.ratio_sums.by_mode,
        "mismatch": trainer.mismatch.carried(),
        "skipped_steps": trainer.idle_steps.skipped,
    }
    if trainer._step % _steps_per_rollout(trainer):
        carried["rollout"] = [
            # A copy, so that the larger tensors that these are views of are not saved
            {key: one.clone() if isinstance(one, Tensor) else one for key, one in batch.items()}
            for batch in trainer._buffered_inputs or []
        ]
        carried["completions"] = _completions(trainer)
    return carried


def _steps_per_rollout(trainer: Any) -> int:
    return trainer.args.steps_per_generation * trainer.num_iterations


def _restore_state(trainer: Any, written: dict[str, Any]) -> None:
    carried: Any = send_to_device(written, trainer.accelerator.device)
    vars(trainer).update(carried["values"])
    if counts_the_steps_of_this_call(trainer):
        trainer._total_loss_scalar = -trainer._tr_loss.item()  # added at the next logged step
    trainer._metrics["train"].clear()  # not replaced, as `StepPhases` uses the same dict
    for name, values in carried["metrics"].items():
        trainer._metrics["train"][name].extend(values)
    trainer.ratio_sums.by_mode = written["ratio_sums"]  # stays on the CPU
    trainer.mismatch.restore(carried["mismatch"])
    if "rollout" in carried:
        trainer._buffered_inputs = carried["rollout"]
        _log_completions(trainer, carried["completions"])


def counts_the_steps_of_this_call(trainer: Any) -> bool:
    """Whether the summary's `train_loss` is the mean of this call of `train`, without the steps
    before the checkpoint, as in transformers 5.23; in 5.17 it is that of all."""
    return "_initial_global_step" in vars(trainer)


def _completions(trainer: Any) -> dict[str, Any]:
    """The log of completions: a list per column, or a dict of lists for a group of columns."""

    def plain(column: Any) -> Any:
        if isinstance(column, dict):
            return {name: plain(values) for name, values in column.items()}
        return [value if _is_plain(value) else None for value in column]

    names = ("prompt", "completion", "advantages", "rewards", "extra")
    return {name: plain(trainer._logs[name]) for name in names}


def _log_completions(trainer: Any, completions: dict[str, Any]) -> None:
    for name, kept in completions.items():
        if isinstance(kept, dict):
            for column, values in kept.items():
                trainer._logs[name][column].extend(values)
        else:
            trainer._logs[name].extend(kept)


def _is_plain(value: Any) -> bool:
    """Whether the value can be loaded without executing pickled code."""
    if type(value) is dict:
        return all(_is_plain(part) for item in value.items() for part in item)
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in (str, int, float, bool, type(None))


def _layout(trainer: Any) -> dict[str, int]:
    return {name: getattr(trainer.args, name) for name in LAYOUT}


def _file(trainer: Any, checkpoint: Path) -> Path:
    return checkpoint / f"carried_{trainer.args.process_index}.pt"


def rotate(run: Path, limit: int | None, best: str | None) -> None:
    with replaced(trainer_utils, sort_checkpoints=_of_the_run):
        trainer_utils.rotate_checkpoints(str(run), limit, best, use_mtime=True)


def only_of_the_run() -> AbstractContextManager[None]:
    """Until the end of the block, the trainer of transformers sees checkpoints of the run only.
    Otherwise it takes a folder of the user, such as `checkpoint-2.bak`, for an old checkpoint."""
    return replaced(transformers_trainer, sort_checkpoints=_of_the_run)


_sort = trainer_utils.sort_checkpoints


def _of_the_run(*args: Any, **kwargs: Any) -> list[str]:
    return [path for path in _sort(*args, **kwargs) if is_checkpoint(Path(path))]
