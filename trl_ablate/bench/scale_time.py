"""Cost per token for different rollout batch sizes, lengths and numbers of processes.

Each point runs in its own process (or several, with torchrun), so that no point starts with the
memory of another.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from trl_ablate.bench.gpu.parts import first_gpus
from trl_ablate.bench.modes import Scale, Train, check_rows
from trl_ablate.bench.timing import Result, timed
from trl_ablate.errors import ConfigurationError


def bench(asked: Scale) -> Result:
    """What `trl-ablate bench scale` publishes. Each round measures all points; the first value of
    each list is used while another list varies."""
    rows, means, processes = asked.rows, asked.mean_lengths, asked.processes
    points = [(n, means[0], processes[0]) for n in rows]
    points += [(rows[0], mean, processes[0]) for mean in means[1:]]
    points += [(rows[0], means[0], count) for count in processes[1:]]
    check(points)
    found = [[_measured(*point, asked.steps) for point in points] for _ in range(asked.rounds)]
    table = []
    for (n, mean, count), of_rounds in zip(points, zip(*found, strict=True), strict=True):
        what = f"{n} rollouts of {mean:g} tokens, {count} process(es)"
        table.append(timed(what, "s/step", [one["s/step"] for one in of_rounds]))
        table[-1]["µs/token"] = median([1e6 / one["tokens/s"] for one in of_rounds])
        table[-1]["peak GiB"] = max(one["peak GiB"] for one in of_rounds)
    return "the training phase, cost of a token", table, {}


def check(points: Sequence[tuple[int, float, int]]) -> None:
    """Refuse a point that cannot be measured, before others are."""
    sizes, most = Train(), max(processes for _, _, processes in points)
    for rows, _, processes in points:
        check_rows(rows, group=sizes.group, microbatch=sizes.microbatch, processes=processes)
    if torch.cuda.is_available() and most > torch.cuda.device_count():
        raise ConfigurationError(
            f"--processes {most} needs as many GPUs, and {torch.cuda.device_count()} are visible; "
            "give fewer processes, such as --processes 1"
        )


def _measured(rows: int, mean_length: float, processes: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "train.json"
        words = ["train", "--only", "--rows", rows, "--mean_length", mean_length]
        words += ["--cap", round(3 * mean_length), "--steps", steps, "--rounds", 1]
        launcher, threads = [sys.executable], max(1, (os.cpu_count() or 1) // processes)
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
