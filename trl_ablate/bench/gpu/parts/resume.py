"""A run that is stopped after half its steps and resumed ends in the bits of one without a stop.

Two runs without a stop are compared first: where they already differ, because kernels of the card
add in no fixed order, the resumed one cannot be judged, and the part fails with that reason.
"""

import os
import tempfile
from pathlib import Path

import torch
from transformers import PrinterCallback

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup
from trl_ablate.config import AblationConfig
from trl_ablate.trainer.ablation import AblationTrainer

STEPS, STOP = 4, 2
ROWS = 16


def measure(setup: Setup) -> Found:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else cuBLAS may add in another order
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = _trained(setup, Path(folder) / "whole", None)
        again = _trained(setup, Path(folder) / "again", None)
        middle = Path(folder) / "again" / f"checkpoint-{STOP}"
        resumed = _trained(setup, Path(folder) / "resumed", middle)
    rows = [
        {"what": name, "largest difference of a weight": _apart(whole, weights)}
        for name, weights in (("a second run without a stop", again), ("resumed", resumed))
    ]
    equal = [row["largest difference of a weight"] == 0 for row in rows]
    return Found(
        rows,
        {
            "two runs without a stop end in the same bits": equal[0],
            "the resumed run ends in the bits of the run without a stop": equal[1],
        },
    )


def _trained(setup: Setup, folder: Path, checkpoint: Path | None) -> list[torch.Tensor]:
    """The weights at the end of a run, from the start or from a checkpoint."""
    model = common.random_model(setup, "miniature")
    trainer = AblationTrainer(
        model=model,
        reward_funcs=synthetic.length_reward,
        args=AblationConfig(
            output_dir=str(folder),
            use_cpu=setup.device == "cpu",
            bf16=setup.device == "cuda",
            gradient_checkpointing=False,
            report_to="none",
            save_steps=STOP,
            logging_steps=1,
            disable_tqdm=True,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=ROWS // 8,
            num_generations=8,
            max_completion_length=16,
            max_steps=STEPS,
            learning_rate=1e-3,
            seed=0,
        ),
        train_dataset=synthetic.prompts(ROWS * STEPS),
        processing_class=miniature.tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [parameter.detach().cpu() for parameter in trainer.model.parameters()]


def _apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))
