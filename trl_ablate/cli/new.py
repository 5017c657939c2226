"""Write a folder with a task or a world of your own, ready to train in miniature.

A task has a recipe, its reward in Python, its prompt, 200 rows of data and a study of two
arms. Its README says what to change.

With --world: a world of the miniature of your own, a Python file with questions, styles, slips,
lesson and shape, with its test, a recipe and a study.

examples:
  trl-ablate new my_task
  trl-ablate new --world my_world
"""

import argparse
import random
import shlex
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trl_ablate.cli.parsing import command, flag, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import write_jsonl

STARTER = Path(__file__).with_name("starter")
ROWS = {"train": 160, "validation": 40}
SEED = 0


@command(
    option("folder", metavar="FOLDER", type=Path, help="to create"),
    flag("--world", "a world in place of a task"),
    stopped="the folder is not complete",
)
def main(options: argparse.Namespace) -> None:
    folder: Path = options.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists already; give the name of a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        copy(STARTER / "world" if options.world else STARTER, Path(scratch))
        if not options.world:
            write_data(Path(scratch) / "data")
        for path in sorted(Path(scratch).iterdir()):  # a full disk leaves no half of a task
            path.rename(folder / path.name)
    now = shlex.join(["trl-ablate", "check", str(folder / "recipe.yaml")])
    console.print(f"written: {folder}; now: {now}")


def copy(starter: Path, folder: Path) -> None:
    for file in sorted(starter.iterdir()):
        if file.is_file():
            name = "README.md" if file.name == "README.txt" else file.name
            (folder / name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")


def write_data(folder: Path) -> None:
    folder.mkdir()
    rows = sums(sum(ROWS.values()))
    for split, count in ROWS.items():
        write_jsonl(folder / f"{split}.jsonl", islice(rows, count))


def sums(count: int) -> Iterator[dict[str, object]]:
    """Different sums of two-digit numbers; the level is the number of carries."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    for a, b in random.Random(SEED).sample(pairs, count):
        carries = (a % 10 + b % 10 > 9) + (a + b > 99)
        yield {"question": f"What is {a}+{b}?", "answer": str(a + b), "level": carries}
