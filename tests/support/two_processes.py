"""Run in one process or in two: the same 16 completions, the same numbers.

Completions are a function of their global row, so that both layouts see the same ones. Writes, per
setting, the advantage of every completion, the weights after one SGD step, and an evaluation.
"""

import json
import os
import random
import socket
import tempfile
from collections.abc import Callable

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoTokenizer

from tests.support.trainers import ON_CPU
from tests.support.warm import fork
from trl_ablate import AblationConfig, AblationTrainer

ROWS = 16
SETTINGS = [
    {"length_norm": "mean"},
    {"length_norm": "token"},
    {"length_norm": "constant", "baseline": "leave_one_out", "scale_rewards": "batch"},
    {"length_norm": "token", "baseline": "batch_mean", "scale_rewards": "none", "beta": 0.1},
    {"length_norm": "mean", "group_filter": "drop", "beta": 0.1},
    {"length_norm": "token", "group_filter": "drop", "baseline": "group_then_batch",
     "scale_rewards": "token_std"},
    {"length_norm": "nonzero", "positive_weight": 0.0, "baseline": "token_mean", "beta": 0.1},
    {"length_norm": "mean", "group_filter": "resample", "scale_rewards": "advantage_std"},
    {"length_norm": "mean", "reward_noise": 0.5, "scale_rewards": "group_mean",
     "overlong_penalty": 0.5, "overlong_share": 1.0},
    {"length_norm": "prompt", "group_filter": "drop", "kl_estimator": "k2", "beta": 0.1},
    {"length_norm": "mean", "kl_estimator": "k1", "kl_in": "reward", "beta": 0.1},
    {"length_norm": "token", "baseline": "group_token_mean", "scale_rewards": "none"},
    {"length_norm": "token", "baseline": "best_of_others", "best_of": 3,
     "hard_group_exponent": 0.5},
    # one process has an idle microbatch in every step, and both exchange something beside it
    {"length_norm": "mean", "gradient_checkpointing": True, "max_steps": 3, "ddp_timeout": 60},
    {"length_norm": "mean", "max_steps": 2, "ddp_timeout": 60,
     "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
]  # fmt: skip


class ScriptedTrainer(AblationTrainer):
    """Generates from a script instead of the model."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations):
        first = self.accelerator.process_index * len(prompt_ids)
        return [scripted(first + i) for i in range(len(prompt_ids))], None


def scripted(row: int) -> list[int]:
    draw = random.Random(row)
    return [draw.randint(5, 200) for _ in range(draw.randint(2, 9))]


def reward(completions, **kwargs):
    return [sum(map(ord, text)) % 7 / 3 for text in completions]


def without_variance_in_some(completions, prompts, **kwargs):
    """Constant where a question starts with an odd number."""
    return [
        1.0 if int(prompt[7]) % 2 else value
        for prompt, value in zip(prompts, reward(completions), strict=True)
    ]


def without_variance_in_the_first(completions, completion_ids, **kwargs):
    """Constant in the first group of the first process."""
    first = [scripted(row) for row in range(4)]
    values = zip(completion_ids, reward(completions), strict=True)
    return [1.0 if ids in first else value for ids, value in values]


def measure(model: str, settings: dict, folder: str) -> dict:
    processes = int(torch.distributed.get_world_size()) if torch.distributed.is_initialized() else 1
    prompts = [f"User: {a}+7=?\nAssistant: <think>" for a in range(11, 31)]
    some_idle = "group_filter" in settings or len(settings) == 1
    in_the_first = "max_steps" in settings and without_variance_in_the_first
    trainer = ScriptedTrainer(
        model=model,
        reward_funcs=in_the_first or (without_variance_in_some if some_idle else reward),
        args=AblationConfig(
            **dict(
                output_dir=folder,
                evaluation="one_shot",
                **ON_CPU,
                optim="sgd",
                learning_rate=1.0,
                lr_scheduler_type="constant",
                max_grad_norm=1e9,
                max_steps=1,
                num_generations=4,
                num_generations_eval=1,
                max_completion_length=12,
                per_device_train_batch_size=8 // processes,
                optimizer_batch_size=ROWS,
            )
            | settings
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        eval_dataset=Dataset.from_dict({"prompt": prompts[:7]}),  # does not divide by two
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
    trainer.train()
    logged = trainer._logs
    return {
        "completions": list(logged["completion"]),
        "advantages": list(logged["advantages"]),
        "weights": [p.detach().flatten().tolist() for p in trainer.model.parameters()],
        "used": trainer.state.log_history[0]["rollouts/used"],
        "evaluation": trainer.evaluate(),
    }


def environment(rank: int, port: int) -> dict[str, str]:
    """What a launcher tells the first or the second of two processes."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_two_processes(target: Callable[..., None], *arguments: object) -> None:
    """Do `target(*arguments)` in two processes that know of each other."""
    port = free_port()
    for running in [fork(_one_of_two, rank, port, target, arguments) for rank in (0, 1)]:
        ended = running.wait()
        assert ended.code == 0, ended.printed


def _one_of_two(rank: int, port: int, target: Callable[..., None], arguments: tuple) -> None:
    os.environ.update(environment(rank, port))
    target(*arguments)


def main(model: str, output: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(model, settings, folder) for settings in SETTINGS]
    ranks = gather_object([1])
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        with open(output, "w", encoding="utf-8") as file:
            json.dump({"processes": len(ranks), "results": results}, file)
