"""vLLM in the training process: whether its weights follow the trainer's, and what sleep frees.

If a weight sync failed, the gap between the engine's and the trainer's log-probabilities would grow
with every step.
"""

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from trl_ablate.bench import synthetic
from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, NotHere, Setup
from trl_ablate.bench.tables import median
from trl_ablate.config import AblationConfig
from trl_ablate.metrics import GRAD_NORM
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.phases import GIB

STEPS = 10
GAP = "sampling/sampling_logp_difference/mean"
ALLOWED = {"cuda": 0.05, "cpu": 1e-3}
"""Mean gap: engine and trainer compute in bfloat16 on a GPU, in float32 here on a CPU."""
GROWTH = 2.0
"""Allowed ratio of the last three steps' gap to that of the first three."""


def measure(setup: Setup) -> Found:
    if find_spec("vllm") is None:
        raise NotHere("vLLM is not installed; install trl-ablate[vllm]")
    with tempfile.TemporaryDirectory() as folder:
        common.save_random_model(setup, Path(folder))
        return _measured(setup, _trainer(setup, Path(folder)))


def _measured(setup: Setup, trainer: AblationTrainer) -> Found:
    sleeps = watch_sleep(trainer.vllm_generation.llm) if setup.device == "cuda" else []
    trainer.train()
    log = [row for row in trainer.state.log_history if GRAD_NORM in row]
    gaps = [row[GAP] for row in log]
    first, last = median(gaps[:3]), median(gaps[-3:])
    allowed = ALLOWED[setup.device]
    checks = {
        f"the gap of every step is below {allowed}": len(gaps) == STEPS and max(gaps) < allowed,
        f"the gap has not grown by {GROWTH}": last <= GROWTH * first + 1e-5,
    }
    facts: dict[str, Any] = {"sleep mode": "not on a CPU"}
    if sleeps:
        facts = {"GiB that a sleep frees": median(sleeps)}
        checks["sleep frees memory"] = median(sleeps) > 1
    rows = [{"what": f"step {i}", "mean gap": gap} for i, gap in enumerate(gaps, 1)]
    return Found(rows, checks, facts)


def watch_sleep(llm: Any) -> list[float]:
    """The GiB that every sleep of this engine frees on the card, as they are measured."""
    freed: list[float] = []
    asleep: Callable[..., Any] = llm.sleep

    def measured(*args: Any, **keywords: Any) -> Any:
        before, _ = torch.cuda.mem_get_info()
        result = asleep(*args, **keywords)
        torch.cuda.synchronize()
        freed.append((torch.cuda.mem_get_info()[0] - before) / GIB)
        return result

    llm.sleep = measured
    return freed


def _trainer(setup: Setup, folder: Path) -> AblationTrainer:
    on_gpu = setup.device == "cuda"
    rows = 16 if setup.toy else 64
    return AblationTrainer(
        model=str(folder),
        reward_funcs=synthetic.length_reward,
        args=AblationConfig(
            output_dir=str(folder / "run"),
            use_cpu=not on_gpu,
            bf16=on_gpu,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=rows // 4,
            num_generations=8,
            max_completion_length=16 if setup.toy else 256,
            max_steps=STEPS,
            learning_rate=1e-4 if setup.toy else 1e-5,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_importance_sampling_mode="token_truncate",
            vllm_enable_sleep_mode=on_gpu,
            vllm_gpu_memory_utilization=0.3,
            vllm_max_model_length=128 if setup.toy else 1024,
        ),
        train_dataset=synthetic.prompts(rows * STEPS // 8),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
