"""The training phase of a GRPO step: stock `GRPOTrainer` against `AblationTrainer`.

Both train copies of one random model on the same replayed rollouts, alternately for several rounds.
The first step of a round is warm-up and is not counted. The time is measured from the beginning to
the end of an optimizer step, which with replayed rollouts is the training phase. Gradient norms and
final weights are compared, to show that a faster step computes the same result.

And its cost per token for different rollout batch sizes, lengths and numbers of processes.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import lcm
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from trl_ablate.bench import synthetic, timing
from trl_ablate.bench.gpu.parts import first_gpus
from trl_ablate.bench.modes import Scale, Train, Training, check_rows
from trl_ablate.bench.timing import LIMIT, OURS, STOCK, Measured, Result, compared, timed
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.identity import cores
from trl_ablate.trainer.temporary import replaced

Ways = Mapping[str, Mapping[str, Any]]
"""Name -> settings. The way that is called `STOCK` is trained by stock TRL."""


@dataclass
class Workload(Training):
    lengths_N: list[int]

    @property
    def rows(self) -> int:
        return len(self.lengths_N)

    @property
    def padded_as_drawn(self) -> float:
        """The padded share if every completion is padded to the longest."""
        whole = (max(self.lengths_N) + self.prompt_length) * self.rows
        return 1 - (sum(self.lengths_N) + self.prompt_length * self.rows) / whole

    def padded(self, one: Measured) -> float:
        """The padded share that a trainer logged; stock TRL logs none."""
        logged = one.logged("padding/fraction")
        return self.padded_as_drawn if logged is None else logged


def bench(asked: Train) -> Result | None:
    """What `trl-ablate bench train` publishes; None in all processes but the first."""
    state = PartialState(cpu=not torch.cuda.is_available())
    sizes = {each.name: getattr(asked, each.name) for each in fields(Training)}
    load = Workload(lengths_asked(asked, state.num_processes), **sizes)
    torch.manual_seed(asked.seed)
    model, tokenizer = synthetic.model_and_tokenizer(asked, asked.vocabulary)
    ways: Ways = {} if asked.only else {STOCK: {}}
    if load.corrected:
        ways[f"{OURS}, extra forward"] = {"reuse_forward": False}
    found = compare(model, tokenizer, load, ways | {OURS: {}}, keep_weights=True)
    title = (
        f"training phase, {load.rows} completions of {sum(load.lengths_N) / load.rows:.0f} tokens "
        f"(longest {max(load.lengths_N)}), microbatch {load.microbatch}, {asked.model}"
    )
    facts = differences(next(iter(found.values())), found[OURS]) if ways else {}
    facts |= {} if asked.only else {LIMIT: found[STOCK].limit("train")}
    return (title, rows_of(found, load), facts) if state.is_main_process else None


def lengths_asked(asked: Train, processes: int) -> list[int]:
    """Drawn or recorded lengths; fewer recorded ones than rows are cut to whole groups and
    microbatches."""
    check_rows(asked.rows, group=asked.group, microbatch=asked.microbatch, processes=processes)
    if not asked.lengths or asked.uniform:
        return synthetic.lengths(asked)
    recorded = synthetic.recorded_lengths(asked.lengths)[: asked.rows]
    least = lcm(asked.group, asked.microbatch * processes)
    if len(recorded) < least:
        raise ConfigurationError(
            f"{asked.lengths} has {len(recorded)} lengths, and a step takes a multiple of {least}; "
            "record more, or lower --group or --microbatch"
        )
    if min(recorded) < 1:
        raise ConfigurationError(
            f"{asked.lengths} has the length {min(recorded)}; give lengths of at least 1"
        )
    return recorded[: len(recorded) // least * least]


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    load: Workload,
    ways: Ways,
    *,
    keep_weights: bool = False,
) -> dict[str, Measured]:
    """Train in each way alternately, `load.rounds` times, each time from the same weights."""
    builds = {name: partial(_build, name, model, tokenizer, load, ways[name]) for name in ways}
    return timing.compare(builds, load.rounds, keep_weights=keep_weights)


def rows_of(found: Mapping[str, Measured], load: Workload) -> list[dict[str, Any]]:
    """The table. Other work on the machine only slows a step down, so `fastest` depends least on
    it."""
    first = next(iter(found.values()))
    return [
        {
            **compared(name, "s/step", one, first),
            "fastest": min(one.seconds),
            "tokens/s": sum(load.lengths_N) / median(one.seconds),
            "positions": one.positions_of_step("train"),
            "padded": load.padded(one),
            "peak GiB": one.peak / 2**30,
        }
        for name, one in found.items()
    ]


def differences(one: Measured, other: Measured) -> dict[str, float]:
    """Of the gradient norms, and the largest absolute one of weights."""
    weights = zip(one.weights, other.weights, strict=True)
    return {
        "gradient norms, relative": apart(one, other),
        "weights at the end, absolute": max((a - b).abs().max().item() for a, b in weights),
    }


def apart(one: Measured, other: Measured) -> float:
    """Largest relative difference of gradient norms; from a norm of 0 the absolute one."""
    norms = zip(one.grad_norms, other.grad_norms, strict=True)
    return max(abs(a - b) / (a or 1.0) for a, b in norms)


def _build(
    name: str, model: PreTrainedModel, tokenizer: Any, load: Workload, own: Mapping[str, Any]
) -> GRPOTrainer:
    """A trainer of a copy of the model."""
    settings = {
        **timing.sizes_of(load, max(load.lengths_N), PartialState().num_processes),
        **({"bf16": True} if load.bf16 else {}),
        "loss_type": "grpo",
        "learning_rate": 1e-4,
        "use_vllm": load.corrected,
        "vllm_mode": "server",
        "vllm_importance_sampling_mode": "token_truncate",
        **own,
    }
    replay = synthetic.Replay(load.lengths_N, len(tokenizer), load.prompt_length, load.group)
    with replaced(grpo_trainer, VLLMGeneration=synthetic.NoEngine):
        return timing.trainer_of(
            name == STOCK,
            settings,
            model=copy.deepcopy(model),
            reward_funcs=partial(synthetic.length_reward, group=load.group, idle=load.idle),
            train_dataset=synthetic.prompts(load.rows * (load.steps + 1) // load.group),
            processing_class=tokenizer,
            rollout_func=replay,
        )


def bench_scale(asked: Scale) -> Result:
    """What `trl-ablate bench scale` publishes. Each round measures all points; the first value of
    each list is used while another list varies."""
    rows, means, processes = asked.rows, asked.mean_lengths, asked.processes
    points = [(n, means[0], processes[0]) for n in rows]
    points += [(rows[0], mean, processes[0]) for mean in means[1:]]
    points += [(rows[0], means[0], count) for count in processes[1:]]
    check_points(points)
    found = [[_alone(*point, asked.steps) for point in points] for _ in range(asked.rounds)]
    table = []
    for (n, mean, count), of_rounds in zip(points, zip(*found, strict=True), strict=True):
        what = f"{n} rollouts of {mean:g} tokens, {count} process(es)"
        table.append(timed(what, "s/step", [one["s/step"] for one in of_rounds]))
        table[-1]["µs/token"] = median([1e6 / one["tokens/s"] for one in of_rounds])
        table[-1]["peak GiB"] = max(one["peak GiB"] for one in of_rounds)
    return "the training phase, cost of a token", table, {}


def check_points(points: Sequence[tuple[int, float, int]]) -> None:
    sizes, most = Train(), max(processes for _, _, processes in points)
    for rows, _, processes in points:
        check_rows(rows, group=sizes.group, microbatch=sizes.microbatch, processes=processes)
    if torch.cuda.is_available() and most > torch.cuda.device_count():
        raise ConfigurationError(
            f"--processes {most} needs as many GPUs, and {torch.cuda.device_count()} are visible; "
            "give fewer processes, such as --processes 1"
        )


def _alone(rows: int, mean_length: float, processes: int, steps: int) -> dict[str, Any]:
    """A point in its own process (or several), so that none starts with the memory of another."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "train.json"
        words = ["train", "--only", "--rows", rows, "--mean_length", mean_length]
        words += ["--cap", round(3 * mean_length), "--steps", steps, "--rounds", 1]
        launcher, threads = [sys.executable], max(1, cores() // processes)
        if processes > 1:
            launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
            launcher += ["--standalone"]
        subprocess.run(
            [*launcher, "-m", "trl_ablate", "bench", *map(str, words), "--output", str(output)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **first_gpus(processes), "OMP_NUM_THREADS": str(threads)},
        )
        (row,) = json.loads(output.read_text("utf-8"))["rows"]
    return row
