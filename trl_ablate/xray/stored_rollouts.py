"""The rollouts of an X-ray on disk: drawn once, read by every arm. No pickles.

    questions.jsonl    the rows of the training set, in the order in which they are asked
    about.json         what they were drawn with
    batch-000.npz      one rollout batch: tokens, log-probabilities, rewards, passes

A batch holds the rows of all processes, in the order of the questions, groups together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import read_jsonl, read_object, write_json, write_jsonl

QUESTIONS, ABOUT = "questions.jsonl", "about.json"
RAGGED = {"prompt_ids", "completion_ids", "logps", "sampling_logps"}
DAMAGED = (OSError, ValueError, KeyError, BadZipFile)
"""What reading a damaged file of arrays raises."""


@dataclass(frozen=True)
class RolloutBatch:
    """One rollout batch of N completions, of all processes."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logps: list[list[float]]
    """Of each token, under the checkpoint that sampled it."""
    rewards_NF: np.ndarray
    """Of each reward function; NaN where it gave none."""
    reward_names: list[str]
    passed_N: np.ndarray
    sampling_logps: list[list[float]] | None = None
    """The engine's own, if it is another one than the trainer."""

    @property
    def lengths_N(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.completion_ids])


class RolloutFolder:
    """Reads and writes rollout batches; a batch is read once."""

    def __init__(self, path: Path):
        self.path = path
        self._read: dict[int, RolloutBatch] = {}

    def batch(self, number: int) -> RolloutBatch | None:
        file = self._file(number)
        if number not in self._read and file.exists():
            try:
                arrays = read_arrays(file)
                for name in RAGGED & arrays.keys():
                    ends = np.cumsum(arrays.pop(f"{name}_lengths"))[:-1]
                    arrays[name] = [part.tolist() for part in np.split(arrays[name], ends)]
                names = arrays.pop("reward_names").tolist()
                self._read[number] = RolloutBatch(**arrays, reward_names=names)
            except DAMAGED as error:
                raise ConfigurationError(
                    f"{file} could not be read ({str(error)[:200]}); delete it, and it is drawn "
                    "again"
                ) from error
        return self._read.get(number)

    def put(self, number: int, batch: RolloutBatch, *, write: bool) -> None:
        """Keep a batch that was drawn; one process also writes it."""
        self._read[number] = batch
        if not write:
            return
        arrays = {name: value for name, value in vars(batch).items() if value is not None}
        for name in RAGGED & arrays.keys():
            rows, kind = arrays[name], np.int64 if name.endswith("ids") else np.float32
            arrays[name] = np.array([value for row in rows for value in row], kind)
            arrays[f"{name}_lengths"] = np.array([len(row) for row in rows])
        write_arrays(self._file(number), arrays)

    def batches(self, count: int) -> list[RolloutBatch]:
        """The first batches, or a refusal."""
        found = [batch for number in range(count) if (batch := self.batch(number))]
        if len(found) < count:
            raise ConfigurationError(
                f"{self.path} has {len(found)} of {count} rollout batches; lower "
                "--batches, or draw new rollouts with another --output"
            )
        return found

    def begin(self, about: Mapping[str, Any], questions: Sequence[dict[str, Any]]) -> None:
        """Write what the rollouts are drawn with; refuse a folder with other rollouts."""
        if (self.path / ABOUT).exists():
            self.check(about)
        self.path.mkdir(parents=True, exist_ok=True)
        if len(questions) > len(self.questions()):
            write_jsonl(self.path / QUESTIONS, questions)
        write_json(self.path / ABOUT, dict(about))

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse rollouts that were drawn with other settings than these."""
        if not (self.path / ABOUT).exists():
            raise ConfigurationError(
                f"{self.path} holds no rollouts of an X-ray ({ABOUT}); give the `rollouts/…` "
                "folder of an --output, or a run's rollouts/STEP.jsonl"
            )
        drawn = read_object(self.path / ABOUT)
        for key, value in about.items():
            if drawn.get(key) != value:
                raise ConfigurationError(
                    f"the rollouts in {self.path} were drawn with {key} "
                    f"{str(drawn.get(key))[:120]!r}, and the reference has {str(value)[:120]!r}; "
                    "give other rollouts, or draw new ones with another --output"
                )

    def questions(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.path / QUESTIONS))

    def _file(self, number: int) -> Path:
        return self.path / f"batch-{number:03}.npz"


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    part = file.with_suffix(".part.npz")
    np.savez_compressed(part, **arrays)
    part.replace(file)


def read_arrays(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as stored:
        return dict(stored)
