"""Evaluation: stock `GRPOTrainer.evaluate` in its batches against one-shot evaluation.

Both generate for the same prompts with the same model and grade with the same reward functions.
Times are taken at temperature 1. One more round decodes greedily, so that both say the same, and
compares what each completion was given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from trl_ablate import miniature
from trl_ablate.bench.tables import median
from trl_ablate.config import AblationConfig
from trl_ablate.data.choice import Selection, Source
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.rewards import MathGrader, build_rewards
from trl_ablate.trainer.ablation import AblationTrainer

AT_ONCE = 512
"""Prompts generated together by ours on a CPU, as in the miniature's profile."""


@dataclass
class Graded:
    """Rewards by prompt and completion, noted as the reward function gives them."""

    reward: Callable[..., list[float | None]]
    seen: dict[tuple[str, str], float | None] = field(default_factory=dict)
    __name__ = "graded"

    def __call__(self, prompts: list[str], completions: list[str], **given: Any):
        rewards = self.reward(prompts=prompts, completions=completions, **given)
        self.seen |= dict(zip(zip(prompts, completions, strict=True), rewards, strict=True))
        return rewards


def compare(prompts: int, batches: list[int], rounds: int) -> tuple[list[dict], dict[str, float]]:
    """The table and the facts: stock at every batch size, and ours."""
    with MathGrader(workers=2) as grader:
        builds: dict[str, Callable[..., GRPOTrainer]] = {
            f"stock TRL, batch of {size}": partial(_stock, size) for size in batches
        }
        builds["trl_ablate, one shot"] = _ours
        dataset, rewards = _prompts(prompts), _reward(grader)
        trainers = {
            name: build(Graded(rewards), dataset, greedy=False) for name, build in builds.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(rounds):
            for name, trainer in trainers.items():
                seconds[name].append(_seconds(trainer))
        facts = _agreement(rewards, dataset, largest=max(batches))
    ours = median(seconds["trl_ablate, one shot"])
    rows = [
        {"what": name, "s": median(taken), "ratio to ours": median(taken) / ours}
        for name, taken in seconds.items()
    ]
    return rows, facts


def _agreement(reward, dataset, largest: int) -> dict[str, float]:
    theirs, ours = Graded(reward), Graded(reward)
    _stock(largest, theirs, dataset, greedy=True).evaluate()
    _ours(ours, dataset, greedy=True).evaluate()
    both = theirs.seen.keys() & ours.seen.keys()
    return {
        "completions that both said": len(both),
        "of them with another reward": sum(theirs.seen[key] != ours.seen[key] for key in both),
    }


def _seconds(trainer: GRPOTrainer) -> float:
    began = time.perf_counter()
    trainer.evaluate()
    return time.perf_counter() - began


def _prompts(count: int):
    questions = load_questions(Source("miniature", "validation"), Selection(count))
    return to_prompts(questions, "r1_zero", style="short")


def _reward(grader: MathGrader):
    return build_rewards("r1_zero", grader=grader)[0][0]


def _stock(size: int, reward: Graded, dataset, *, greedy: bool) -> GRPOTrainer:
    return _build(GRPOTrainer, GRPOConfig, size, reward, dataset, greedy)


def _ours(reward: Graded, dataset, *, greedy: bool) -> GRPOTrainer:
    return _build(AblationTrainer, AblationConfig, AT_ONCE, reward, dataset, greedy)


def _build(cls, config_class, size: int, reward, dataset, greedy: bool) -> GRPOTrainer:
    model = str(miniature.build())
    trainer = cls(
        model=model,
        reward_funcs=reward,
        args=config_class(
            output_dir="unused",
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            per_device_eval_batch_size=size,
            num_generations_eval=1,
            max_completion_length=48,
            top_k=1 if greedy else 0,
        ),
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
