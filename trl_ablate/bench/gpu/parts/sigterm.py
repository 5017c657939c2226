"""SIGTERM to a real training: it ends after its step with exit code 75 and a whole checkpoint."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup
from trl_ablate.run.json_files import read_jsonl

EXPECTED = 75
PATIENCE = 100.0
"""Seconds until the first step, and from the signal to the end."""


def measure(setup: Setup) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, run = folder / "base", folder / "run"
        common.save_random_model(setup, base, "miniature")
        with (folder / "log").open("wb") as log:
            training = subprocess.Popen(words(setup, base, run), stdout=log, stderr=log)
        try:
            wait_for_step(training, run)
            began = time.monotonic()
            training.send_signal(signal.SIGTERM)
            code = training.wait(PATIENCE)
        finally:
            training.kill()
        seconds = time.monotonic() - began
        whole = [path.parent.name for path in run.glob("checkpoint-*/sealed.json")]
        last = (folder / "log").read_text("utf-8", errors="replace").strip().splitlines()[-1:]
    return Found(
        [
            {
                "what": "SIGTERM",
                "exit code": code,
                "s to the end": seconds,
                "checkpoints": ", ".join(whole),
            }
        ],
        {f"exit code {EXPECTED}": code == EXPECTED, "a whole checkpoint": bool(whole)},
        {"last line": last[0] if last else ""},
    )


def words(setup: Setup, base: Path, run: Path) -> list[str]:
    settings = {
        "model_name_or_path": base,
        "output_dir": run,
        "use_cpu": str(setup.device == "cpu").lower(),
        "grpo_steps": 100_000,
        "generation_batch_size": 16,
        "optimizer_batch_size": 16,
        "per_device_train_batch_size": 16,
        "max_completion_length": 16,
        "eval_on_start": "false",
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
    }
    given = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return [
        *[sys.executable, "-m", "trl_ablate", "train", "grpo", "--profile", "miniature"],
        *given,
    ]


def wait_for_step(training: subprocess.Popen, run: Path) -> None:
    """Wait until the training has logged an optimizer step."""
    ends = time.monotonic() + PATIENCE
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or not any("reward" in row for row in read_jsonl(metrics)):
        if training.poll() is not None or time.monotonic() > ends:
            raise RuntimeError("the training has logged no step")
        time.sleep(0.1)
