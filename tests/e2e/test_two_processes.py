"""Two gloo processes compute what one does with twice the batch, and take the same gradients of an
X-ray, on rollouts drawn by either.

Completions are a function of their global row, so that both layouts see the same ones.
"""

import json
import os
import random
import tempfile
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from tests.support.trainers import ON_CPU
from tests.support.two_processes import in_two_processes
from tests.support.warm import fork
from tests.support.xray_cases import small_xray
from trl_ablate import AblationConfig, AblationTrainer
from trl_ablate.trainer import batching
from trl_ablate.trainer.temporary import replaced

pytestmark = pytest.mark.slow

ROWS = 16
TOLERANCE = 2e-6
"""Weights of order 0.1 after one SGD step of rate 1: sums of 16 rows in two orders, fp32."""


def by_sum(completions, **kwargs):
    return [sum(map(ord, text)) % 7 / 3 for text in completions]


def with_odd_groups_equal(completions, prompts, **kwargs):
    """Constant where a question starts with an odd number."""
    return [
        1.0 if int(prompt[7]) % 2 else value
        for prompt, value in zip(prompts, by_sum(completions), strict=True)
    ]


def with_the_first_group_equal(completions, completion_ids, **kwargs):
    """Constant in the first group of the first process."""
    first = [scripted(row) for row in range(4)]
    values = zip(completion_ids, by_sum(completions), strict=True)
    return [1.0 if ids in first else value for ids, value in values]


DROP = {"reward": with_odd_groups_equal, "group_filter": "drop"}
IDLE = {"reward": with_the_first_group_equal, "length_norm": "mean", "ddp_timeout": 60}
"""One process has an idle microbatch in every step."""
SETTINGS = [
    {"length_norm": "mean", "reward": with_odd_groups_equal},
    {"length_norm": "constant", "baseline": "leave_one_out", "scale_rewards": "batch"},
    {"length_norm": "token", "baseline": "batch_mean", "scale_rewards": "none", "beta": 0.1},
    {**DROP, "length_norm": "token", "baseline": "group_then_batch", "scale_rewards": "token_std"},
    {**DROP, "length_norm": "prompt", "kl_estimator": "k2", "beta": 0.1},
    {**DROP, "length_norm": "mean", "group_filter": "resample", "scale_rewards": "advantage_std"},
    {"length_norm": "nonzero", "positive_weight": 0.0, "baseline": "token_mean", "beta": 0.1},
    {"length_norm": "mean", "reward_noise": 0.5, "scale_rewards": "group_mean",
     "overlong_penalty": 0.5, "overlong_share": 1.0},
    {"length_norm": "mean", "kl_estimator": "k1", "kl_in": "reward", "beta": 0.1},
    {"length_norm": "token", "baseline": "group_token_mean", "scale_rewards": "none"},
    {"length_norm": "token", "baseline": "best_of_others", "best_of": 3,
     "hard_group_exponent": 0.5},
    {"length_norm": "mean", "images_in": 1},
    {**IDLE, "gradient_checkpointing": True, "max_steps": 3},
    {**IDLE, "max_steps": 2,
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


def measure(model: str, folder: str, reward=by_sum, images_in=-1, **settings) -> dict:
    """The advantage of every completion, the weights after SGD steps, and an evaluation. Batches of
    the process `images_in` count as if they had images, which keeps all from being regrouped."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    prompts = [f"User: {a}+7=?\nAssistant: <think>" for a in range(11, 31)]
    chosen = {
        **ON_CPU, "output_dir": folder, "evaluation": "one_shot", "optim": "sgd",
        "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "max_steps": 1,
        "num_generations": 4, "num_generations_eval": 1, "max_completion_length": 12,
        "per_device_train_batch_size": 8 // processes, "optimizer_batch_size": ROWS, **settings,
    }  # fmt: skip
    trainer = ScriptedTrainer(
        model=model,
        reward_funcs=reward,
        args=AblationConfig(**chosen),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        eval_dataset=Dataset.from_dict({"prompt": prompts[:7]}),  # does not divide by two
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
    has_images = int(os.environ.get("RANK", "0")) == images_in
    with replaced(batching, is_text=lambda batch: not has_images):
        trainer.train()
    return {
        "processes": trainer.accelerator.num_processes,
        "completions": list(trainer._logs["completion"]),
        "advantages": list(trainer._logs["advantages"]),
        "weights": [p.detach().flatten().tolist() for p in trainer.model.parameters()],
        "used": trainer.state.log_history[0]["rollouts/used"],
        "evaluation": trainer.evaluate(),
    }


def is_main() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def measure_all(model: str, output: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(model, folder, **settings) for settings in SETTINGS]
    if is_main():
        Path(output).write_text(json.dumps(results))


def in_one_process(target, *arguments: object) -> None:
    ended = fork(target, *arguments).wait()
    assert ended.code == 0, ended.printed


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    """(settings, results of one process, results of two)."""
    outputs = [tmp_path_factory.mktemp("processes") / f"{number}.json" for number in (1, 2)]
    for output, start in zip(outputs, (in_one_process, in_two_processes), strict=True):
        start(measure_all, tiny_model, str(output))
    return list(zip(SETTINGS, *(json.loads(file.read_text()) for file in outputs), strict=True))


OF_THE_CLOCK = ("time/eval", "runtime", "per_second")


def test_the_same_advantages_gradient_and_evaluation(measured):
    for _, one, two in measured:
        assert (one["processes"], two["processes"]) == (1, 2)
        assert one["completions"] == two["completions"] and one["used"] == two["used"]
        assert one["advantages"] == pytest.approx(two["advantages"], abs=1e-6)
        assert any(one["advantages"])
        for ours, theirs in zip(one["weights"], two["weights"], strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)
        for name, value in one["evaluation"].items():
            if not any(words in name for words in OF_THE_CLOCK):
                assert value == pytest.approx(two["evaluation"][name]), name


def test_some_groups_were_dropped_and_the_processes_have_unequal_numbers_left(measured):
    found = [two for given, _, two in measured if given.get("group_filter") == "drop"]
    assert len(found) == 2
    for two in found:
        left = [any(two["advantages"][at : at + 4]) for at in range(0, ROWS, 4)]
        assert 0 < two["used"] < ROWS and sum(left[:2]) != sum(left[2:])


FIGURES = ("norm_ratio", "cosine_batch", "cosine_batch_min", "cosine_mean", "self_cosine", "signal")
WITHIN = 1e-4
"""Sums of float32 in another order."""
ARMS = ["grpo", "length_norm_constant", "grpo+group_filter=drop"]


def compare(model: str, output: str, rollouts: str | None, processes: int = 1) -> None:
    """An X-ray on rollouts that are given or drawn."""
    from trl_ablate.xray import xray

    settings = small_xray(model, per_device_train_batch_size=8 // processes)
    given = rollouts and Path(rollouts)
    result = xray(ARMS, (), 2, overrides=settings, output=output, rollouts=given)
    if is_main():
        (Path(output) / "found.json").write_text(json.dumps(result.to_dict()))


def test_one_process_takes_the_same_gradients_on_them(tiny_model, tmp_path):
    folders = [tmp_path / "two", tmp_path / "one"]
    in_two_processes(compare, tiny_model, str(folders[0]), None, 2)
    in_one_process(compare, tiny_model, str(folders[1]), str(folders[0] / "rollouts" / "base"))
    two, one = (json.loads((folder / "found.json").read_text()) for folder in folders)
    assert two["arms"].keys() == one["arms"].keys()
    for name in two["arms"]:
        ours, theirs = two["arms"][name][0], one["arms"][name][0]
        for figure in FIGURES:
            assert ours[figure] == pytest.approx(theirs[figure], rel=WITHIN, abs=WITHIN), figure
        assert ours["verdict"] == theirs["verdict"]
        assert ours["tokens"] == pytest.approx(theirs["tokens"], abs=1e-6)
        for by, shares in ours["shares"].items():
            assert shares == pytest.approx(theirs["shares"][by], abs=WITHIN), by
    assert one["arms"]["length_norm_constant"][0]["cosine_mean"] < 0.99
