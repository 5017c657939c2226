"""Hundreds of steps leave memory, open files, processes and the work of a step as they were.

A run is watched from outside while it trains, evaluates and saves. Its use of resources in the
second quarter of its steps is compared with that in the last quarter. `TRL_ABLATE_SOAK=1000` does
that many steps.
"""

import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.support.warm import SMALL, model_and_data, warm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="counts a process's open files in /proc"),
]

STEPS = int(os.environ.get("TRL_ABLATE_SOAK", "200"))
WORDS = [
    *SMALL, "--eval_steps", "10", "--save_steps", "10", "--save_total_limit", "2",
    "--max_completion_length", "16", "--grpo_steps", str(STEPS),
]  # fmt: skip
FLAT = {
    "memory": (0.02, 10.0),
    "workers": (0.02, 10.0),
    "files": (0.0, 0.0),
    "processes": (0.0, 0.0),
    "cpu of a row": (0.25, 0.0),  # a tenth comes and goes with the speed of the machine
}
"""How much more the last quarter may take: a share of the second quarter's, or an amount."""

Sample = dict[str, float]


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> list[Sample]:
    """A training to its end, sampled at each row that it logs, as far as one can keep up."""
    folder = tmp_path_factory.mktemp("soak")
    model, data = model_and_data(folder)
    places = ["--model_name_or_path", model, "--dataset", data, "--output_dir", folder / "run"]
    training = warm("train", *WORDS, *places, with_graders=True)
    samples, rows = [], 0
    training.wait_for((folder / "run" / "metrics.jsonl").exists)
    with (folder / "run" / "metrics.jsonl").open("rb") as file:  # only new rows are read
        while training.alive:
            new = file.read().count(b"\n")
            rows += new
            if new and (found := sample(training.pid, rows)):
                samples.append(found)
            time.sleep(0.01)
    ended = training.wait()
    assert ended.code == 0 and rows >= STEPS, ended.stderr
    return samples


def sample(pid: int, rows: int) -> Sample | None:
    """What a training takes when it has logged so many rows: resident MB of itself and of all that
    it started, and seconds of its threads so far; None where it has ended."""
    try:
        trainer = psutil.Process(pid)
        workers = trainer.children(recursive=True)
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")  # in nanoseconds
        return {
            "rows": rows,
            "memory": trainer.memory_info().rss / 1e6,
            "workers": sum(worker.memory_info().rss for worker in workers) / 1e6,
            "files": trainer.num_fds(),
            "processes": len(workers),
            "cpu": sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9,
        }
    except (FileNotFoundError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def usual(samples: list[Sample], measure: str) -> float:
    """The median of a measure; of the CPU time of a row the lowest tenth, as what else the machine
    does, on the other half of a core, only makes it higher, and for many rows in turn."""
    if measure == "cpu of a row":
        near = [(a, b) for a, b in pairwise(samples) if b["rows"] == a["rows"] + 1]
        return statistics.quantiles([b["cpu"] - a["cpu"] for a, b in near], n=10)[0]
    return statistics.median(each[measure] for each in samples)


@pytest.mark.parametrize("measure", FLAT)
def test_the_last_quarter_takes_what_the_second_took(samples, measure):
    last = samples[-1]["rows"]
    second = [each for each in samples if 0.25 * last <= each["rows"] < 0.5 * last]
    before = usual(second, measure)
    after = usual([each for each in samples if 0.75 * last <= each["rows"]], measure)
    share, amount = FLAT[measure]
    allowed = before + max(before * share, amount)
    assert after <= allowed, f"{measure}: {before:.4g}, then {after:.4g}"
