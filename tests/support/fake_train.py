"""A stand-in for `trl-ablate train`: the same run directory from the same arguments, no training.

`--settings` configures it: top, collapse (see `learning_rows`), pause (seconds per step),
`waits_for` (a file: half way, the run waits for it), and `fails`, `dies`, `never_starts`,
`refused`: how often it raises, is killed, or ends with code 1 or 2 before it writes anything.
Beside the run directory, or in the folder `FAKE_STARTS`, it writes `ID.starts`, one line per start,
and `twice` if two processes used one run. Every fifth step is a checkpoint.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.synthetic_study import learning_rows  # noqa: E402
from trl_ablate.run.checkpoints import latest_whole_checkpoint, seal, step_of  # noqa: E402
from trl_ablate.run.directory import RunDirectory, claimed, delete
from trl_ablate.run.json_files import append_jsonl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--arm")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--settings", type=json.loads)
    parser.add_argument("--output_dir", type=Path)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    attempt = count_start(options.output_dir)
    settings = options.settings
    if attempt <= settings.get("never_starts", 0):
        sys.exit("error: no such profile")
    if attempt <= settings.get("refused", 0):
        sys.stderr.write("error: template x.txt does not contain {question}; add it\n")
        sys.exit(2)
    directory = RunDirectory(options.output_dir)
    mode = "overwrite" if options.overwrite else "resume" if options.resume else "new"
    with claimed(directory, mode):
        if mode == "overwrite":
            delete(directory)
        train(options, settings, attempt, directory)


def train(options, settings, attempt: int, directory: RunDirectory) -> None:
    checkpoint = latest_whole_checkpoint(directory.path) if options.resume else None
    begun = step_of(checkpoint) if checkpoint else -1
    directory.rewind(begun)
    threads = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    directory.write_config({"settings": settings, "threads": threads})
    with directory.recorded(arm=options.arm, seed=options.seed):
        shape = {key: settings[key] for key in ("top", "collapse") if key in settings}
        if checkpoint:
            sys.stdout.write(f"goes on behind step {begun}\n")
        for row in learning_rows(options.seed, **shape):
            if row["step"] <= begun:
                continue
            append_jsonl(directory.metrics_file, row)
            time.sleep(settings.get("pause", 0.0))
            while row["step"] == 10 and not Path(settings.get("waits_for", "/")).exists():
                time.sleep(0.05)
            if row["step"] == 10 and attempt <= settings.get("fails", 0):
                raise RuntimeError("out of luck")
            if row["step"] == 10 and attempt <= settings.get("dies", 0):
                os.kill(os.getpid(), signal.SIGKILL)
            if row["step"] % 5 == 0 and row["step"]:
                save(directory.path / f"checkpoint-{row['step']}")


def save(checkpoint: Path) -> None:
    checkpoint.mkdir(exist_ok=True)
    for name in ("model.safetensors", "rng_state.pth"):
        (checkpoint / name).write_bytes(b"weights")
    seal(checkpoint)


def count_start(directory: Path) -> int:
    """The number of this start of the run; writes `twice` if another process of it is alive."""
    starts = Path(os.environ.get("FAKE_STARTS", directory.parent)) / f"{directory.name}.starts"
    earlier = [int(line) for line in starts.read_text().split()] if starts.exists() else []
    if any(alive(pid) for pid in earlier):
        starts.with_name("twice").write_text(directory.name)
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(earlier) + 1


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
