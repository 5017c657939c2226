"""One training, by stock TRL or by this package, on the same rollouts.

`measure` trains and returns weights and logged rows. Run as a program, it reads one request per
line and answers each with one line, so that two processes (`Pair`) can train many configurations
after one start.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.rows import without_times
from tests.support.trainers import ON_CPU, digits
from tests.support.two_processes import environment, free_port

PLAIN = {"trim_microbatches": False, "regroup_by_length": False, "reuse_forward": False}
"""Without speed-ups: each of them sums in another order than TRL does."""

PROMPTS = [f"User: {a}+{a * a}=?\nAssistant:{' <think>' * (a % 3)}" for a in range(1, 40)]


def draw_completions(rows: list[int], call: int, cap: int, tool: bool) -> dict[str, list]:
    """Token ids, an engine's log-probabilities and the tokens that are not a tool's, for each row.

    They depend on the row and the call alone. Seven in ten rows end in the end-of-sequence token
    (id 0 here is replaced by the caller's); one in five has the full length.
    """
    ids, logps, own = [], [], []
    for row in rows:
        draw = random.Random(f"{call}-{row}")
        length = cap if draw.random() < 0.2 else draw.randint(1, cap)
        ended = draw.random() < 0.7
        ids.append([draw.randint(5, 200) for _ in range(length - ended)] + [0] * ended)
        logps.append([-5.3 + draw.gauss(0, 0.3) for _ in range(length)])
        first = draw.randint(1, length)
        own.append([int(not tool or t < first or t > first + 1) for t in range(length)])
    return {"completion_ids": ids, "logprobs": logps, "env_mask": own}


class Script:
    """Returns rollouts instead of generating them: as an engine, or as a `rollout_func`."""

    def __init__(self, eos: int, cap: int, tool: bool):
        self._eos = eos
        self._cap = cap
        self._tool = tool
        self._calls = 0

    def rollouts(self, count: int) -> dict[str, list]:
        first = int(os.environ.get("RANK", "0")) * count
        drawn = draw_completions(
            list(range(first, first + count)), self._calls, self._cap, self._tool
        )
        self._calls += 1
        ids = [[self._eos if i == 0 else i for i in row] for row in drawn["completion_ids"]]
        return {**drawn, "completion_ids": ids}

    def rollout_func(self, prompts: list, trainer: Any) -> dict[str, list]:
        prompt_ids = [trainer.processing_class(text=prompt)["input_ids"] for prompt in prompts]
        return {"prompt_ids": prompt_ids, **self.rollouts(len(prompts))}

    # The methods that TRL calls on an engine

    def generate(self, prompts, images, num_generations, profiler):
        drawn = self.rollouts(len(prompts))
        logprobs = [[[logp] for logp in row] for row in drawn["logprobs"]]
        return prompts, drawn["completion_ids"], logprobs, None

    def sync_weights(self) -> None:
        pass


def sometimes(completions, **kwargs):
    """Leaves every fourth kind of text ungraded."""
    kinds = [sum(map(ord, text)) % 8 for text in completions]
    return [None if kind in (3, 6) else kind / 7 for kind in kinds]


def measure(model: str, kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Train `configuration` by `stock` TRL, by ours with rows `plain` as TRL pads and deals them,
    or as `shipped`."""
    from trl_ablate import AblationConfig, AblationTrainer

    warnings.simplefilter("ignore")
    settings = dict(configuration)
    task = {key: settings.pop(key) for key in ("questions", "rewards", "rollouts", "lora", "tool")}
    with tempfile.TemporaryDirectory() as folder, engine_for(task, model, settings) as script:
        from trl import GRPOConfig, GRPOTrainer

        trainer_class, config_class = AblationTrainer, AblationConfig
        if kind == "stock":
            trainer_class, config_class = GRPOTrainer, GRPOConfig
        elif kind == "plain":
            settings |= PLAIN
        trainer = build(trainer_class, config_class, model, task, script, folder, settings)
        trainer.train()
        rows = [
            without_times(row) for row in trainer.state.log_history if "train_runtime" not in row
        ]
        weights = {
            name: one.detach().flatten().tolist()
            for name, one in trainer.model.named_parameters()
            if one.requires_grad
        }
    return {"weights": weights, "rows": rows, "steps": trainer.state.global_step}


def build(trainer_class, config_class, model, task, script, folder, settings):
    from datasets import Dataset
    from transformers import AutoTokenizer

    arguments = {
        "output_dir": folder,
        **ON_CPU,
        "lr_scheduler_type": "constant",
        "max_completion_length": 14,
    }
    extras: dict[str, Any] = {}
    if task["rollouts"] == "function":
        extras["rollout_func"] = script.rollout_func
    if task["lora"]:
        from peft import LoraConfig

        extras["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    return trainer_class(
        model=model,
        reward_funcs=[digits, sometimes] if task["rewards"] == 2 else digits,
        args=config_class(**{**arguments, **settings}),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS[: task["questions"]]}),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        **extras,
    )


@contextmanager
def engine_for(task: dict[str, Any], model: str, settings: dict[str, Any]) -> Iterator[Any]:
    """The script of one training; where vLLM is asked for, it stands in for the engine."""
    from transformers import AutoTokenizer

    if task["rollouts"] == "model":
        yield None
        return
    eos = AutoTokenizer.from_pretrained(model).eos_token_id
    script = Script(eos, settings.get("max_completion_length", 14), task["tool"])
    with patch("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: script):
        yield script


class Pair:
    """Two processes that train together, one configuration after another."""

    def __init__(self, model: str):
        port = free_port()
        repository = Path(__file__).resolve().parents[2]
        self._model = model
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.differential"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=repository,
                env={**os.environ, **environment(rank, port)},
            )
            for rank in (0, 1)
        ]

    def measure(self, kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first process; an error of either process is raised here."""
        request = json.dumps([self._model, kind, configuration])
        for process in self._processes:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self._processes]
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        return answers[0]

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait(timeout=60)


def serve() -> None:
    """Answer requests until the input ends; nothing else may be printed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = measure(*json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
