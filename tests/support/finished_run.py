"""A run that has ended, with everything that may or may not be published."""

import json
from functools import cache
from pathlib import Path

from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.picture import Rows, draw_curves

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b"
MODEL = {
    "model.safetensors": b"weights",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "merges.txt": b"a b",
    "chat_template.jinja": b"x",
}


def row(step: int, reward: float, **more) -> dict:
    place = {"step": step, "grpo_step": step / 2, "seconds": step, "eval_reward_stderr": 0.0123}
    return {**place, "eval_reward": reward, "eval_mean_length": 341.25, **more}


def finished_run(path: Path) -> RunDirectory:
    """A collapsing off-policy run of 1.5 B parameters on MATH, stopped by a rule."""
    run = RunDirectory(path)
    for name in ("checkpoint_best", "checkpoint_last"):
        (run.path / name).mkdir(parents=True)
        for file, content in MODEL.items():
            (run.path / name / file).write_bytes(content)
    (run.path / "checkpoint_last" / "model.safetensors").write_bytes(b"last weights")
    learning = {"learning_rate": 2e-4, "learning_rate_scale": 2.0}
    task = {"start": "base", "starts": None, "dataset": "math", "eval_split": None}
    run.write_config(
        {
            "changes": {"learning_rate": [3e-5, 1e-4], "stop": [None, ["a|b"]]},
            "settings": {**learning, "hub_token": "<masked>"},
            "config": {"trackio_space_id": "curves"},
            "task": {**task, "eval_size": 1024},
            "model": {"model_name_or_path": "Qwen/Qwen2.5-Math-1.5B"},
        }
    )
    command = ["/home/me/code/scripts/train.py", "recipes/lr_1e-4.yaml", "--note", "two words"]
    run.update(
        status="stopped",
        reason="gradient norm 41.2 at step 6",
        recipe="lr_1e-4.yaml",
        profile="h100",
        arm="lr_1e-4",
        seed=7,
        command=[*command, "--hub_token", TOKEN],
        git={"commit": "c" * 40, "diff": ""},
        versions={"trl": "1.16.0"},
        host="workstation-of-somebody",
    )
    for step, reward in ((0, 0.03), (2, 0.5), (2, 0.6), (4, 0.3), (6, 0.01)):
        run.append_metrics(row(step, reward, grad_norm=float(step), entropy=0.3))
    run.write_rollouts(2, [{"prompt": "p", "response": "r"}])
    return run


def drawn_once(rows: Rows) -> bytes | None:
    """`draw_curves`, which takes a second, but once for the same rows."""
    return _drawn(json.dumps(rows))


@cache
def _drawn(rows: str) -> bytes | None:
    return draw_curves(json.loads(rows))
