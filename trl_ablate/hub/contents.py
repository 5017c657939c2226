"""The files that a run publishes, read from its directory, with secrets removed. No torch."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.checkpoints import check_seal
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import where_it_stands
from trl_ablate.run.masking import Masker, known_secrets

Source = Path | bytes
"""A local file, unchanged, or content that was created or cleaned for publishing."""

BEST, LAST, ROLLOUTS = "checkpoint_best", "checkpoint_last", "rollouts"
ALERTS = "alerts.jsonl"
"""The guard's alerts, if there were any."""
BEST_NOTE = "best.json"
"""Metric, value and step in `checkpoint_best`; not repeated at the root."""
OVER = ("finished", "stopped", "failed")
"""The states of a run that has ended."""

_MODEL_FILES = {
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "processor_config.json", "image_processor_config.json",
    "video_preprocessor_config.json", "best.json",
}  # fmt: skip
"""The files that transformers and PEFT write for a model and its tokenizer; other files beside them
are not published."""
_SHARD = re.compile(r"(adapter_)?model-\d{5}-of-\d{5}\.safetensors")
_PRIVATE = {"host"}
"""Entries of `run.json` that describe the user's machine rather than the run."""
_CONFIG_PARTS = ("config", "model", "settings", "task")
"""Parts of `resolved_config.json` that the card reads."""
_KEY_ROLLOUTS = 4
"""Number of rollout files published besides the best step's: first, last, and evenly between."""


@dataclass(frozen=True)
class FinishedRun:
    """The records of a run that has ended, without secrets."""

    path: Path
    record: dict[str, Any]
    """`run.json`, without the machine's name and the git diff."""
    config: dict[str, Any]
    """`resolved_config.json`."""
    rows: list[dict[str, Any]]
    """`metrics.jsonl`."""
    masker: Masker

    @property
    def name(self) -> str:
        """Arm and seed, or the folder's name."""
        arm, seed = self.record.get("arm"), self.record.get("seed")
        return f"{arm}-seed{seed}" if arm is not None else self.path.resolve().name

    @cached_property
    def checkpoints(self) -> dict[str, dict[str, Path]]:
        """`checkpoint_best` and `checkpoint_last`, if they exist: file name -> file."""
        folders = {name: where_it_stands(self.path / name) for name in (BEST, LAST)}
        for folder in folders.values():
            _refuse_link(folder)
        return {name: _model_files(at) for name, at in folders.items() if at.is_dir()}

    @property
    def chosen(self) -> str:
        """The checkpoint that the repository's root holds."""
        return BEST if BEST in self.checkpoints else LAST

    @property
    def is_adapter(self) -> bool:
        return "adapter_config.json" in self.checkpoints[self.chosen]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluated rows by step; of a step that occurs twice, after a resume, the last row."""
        evaluated = {row["step"]: row for row in self.rows if row.get("eval_reward") is not None}
        return [evaluated[step] for step in sorted(evaluated)]

    @property
    def best_evaluation(self) -> dict[str, Any] | None:
        """The evaluation that chose `checkpoint_best`, or else the one with the highest reward."""
        chosen_at = (RunDirectory(self.path).best() or {}).get("step")
        for row in self.evaluations:
            if row["step"] == chosen_at:
                return row
        return max(self.evaluations, key=lambda row: row["eval_reward"], default=None)

    def files(self) -> dict[str, Source]:
        """Path in the repository -> content, without the card and the picture."""
        published: dict[str, Source] = {
            "run.json": _json(self.record),
            "resolved_config.json": _json(self.config),
            "metrics.jsonl": self._cleaned(self.path / "metrics.jsonl"),
        }
        if os.path.lexists(self.path / ALERTS):
            published[ALERTS] = self._cleaned(self.path / ALERTS)
        _refuse_link(self.path / ROLLOUTS)
        for file in key_rollouts(self.path / ROLLOUTS, self.best_evaluation):
            published[f"{ROLLOUTS}/{file.name}"] = self._cleaned(file)
        for folder, files in self.checkpoints.items():
            published |= {f"{folder}/{name}": self._checked(file) for name, file in files.items()}
        root = self.checkpoints[self.chosen].items()
        published |= {name: file for name, file in root if name != BEST_NOTE}
        return published

    def _cleaned(self, file: Path) -> bytes:
        """The whole lines of a JSONL file, without secrets."""
        check_own_file(file, self.path)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return self.masker.text(text[: text.rfind("\n") + 1]).encode()

    def _checked(self, file: Path) -> Path:
        check_own_file(file, self.path)
        if file.suffix != ".safetensors" and not self.masker.is_clean(file.read_bytes()):
            raise ConfigurationError(
                f"{file} contains what looks like a token, and model files are published "
                "unchanged; remove it from the file and publish again"
            )
        return file


def read_run(run: RunDirectory, token: str | None = None) -> FinishedRun:
    """The run, ready to publish; raises `ConfigurationError` with the reason if it is not."""
    for file in (run.run_file, run.config_file, run.metrics_file):
        check_own_file(file, run.path)
    record, config = _read_json(run.run_file), _read_json(run.config_file)
    missing = [name for name in _CONFIG_PARTS if not isinstance(config.get(name), dict)]
    if missing:
        raise ConfigurationError(
            f"{run.config_file} has no {', '.join(missing)}; restore the file that the run wrote"
        )
    if record.get("status") not in OVER:
        raise ConfigurationError(
            f"the run in {run.path} is {record.get('status', 'of unknown status')}; publish it "
            "after it has ended; if it was killed, finish it with `trl-ablate train --resume` first"
        )
    command = [str(word) for word in record.get("command") or []]
    masker = Masker(known_secrets((record, config), command, token))
    shown = {"command": masker.words(command), "git": _commit_only(record.get("git"))}
    public = {key: value for key, value in {**record, **shown}.items() if key not in _PRIVATE}
    finished = FinishedRun(
        path=run.path,
        record=masker.value(public),
        config=masker.value(config),
        rows=list(run.metrics()),
        masker=masker,
    )
    if not finished.checkpoints:
        raise ConfigurationError(
            f"{run.path} has neither {BEST} nor {LAST}, so there is no model to publish"
        )
    return finished


def key_rollouts(folder: Path, best: dict[str, Any] | None) -> list[Path]:
    """The first, the last, evenly spaced ones between, and the one nearest the best evaluation."""
    files = sorted((f for f in folder.glob("step_*.jsonl") if _step_of(f) >= 0), key=_step_of)
    if len(files) <= _KEY_ROLLOUTS:
        return files
    gaps = _KEY_ROLLOUTS - 1
    chosen = {files[round(i * (len(files) - 1) / gaps)] for i in range(_KEY_ROLLOUTS)}
    if best is not None:
        chosen.add(min(files, key=lambda file: abs(_step_of(file) - best["step"])))
    return sorted(chosen, key=_step_of)


def _step_of(file: Path) -> int:
    """The step in the file's name; -1 if the name has another form."""
    digits = file.stem.removeprefix("step_")
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def _model_files(folder: Path) -> dict[str, Path]:
    """A checkpoint's files for `from_pretrained`, without pickles; refuses an incomplete one."""
    check_seal(folder)
    files = {
        file.name: file
        for file in sorted(folder.iterdir())
        if (file.name in _MODEL_FILES or _SHARD.fullmatch(file.name)) and file.is_file()
    }
    missing = [shard for shard in _shards(files) if shard not in files]
    if missing or not any(name.endswith(".safetensors") for name in files):
        raise ConfigurationError(
            f"{folder} is not a complete model: "
            f"{', '.join(missing) or 'a .safetensors file'} is missing "
            "(only safetensors files are published)"
        )
    return files


def check_own_file(file: Path, run: Path) -> None:
    """Refuse links: a link could publish any file of this machine under the name of a run's file.
    A second hard link inside the run is allowed; one outside cannot be distinguished from an
    attack."""
    _refuse_link(file)
    if not file.is_file():
        return
    names = os.lstat(file).st_nlink
    if names > 1 and names > _names_within(file, run):
        raise ConfigurationError(
            f"{file} is a hard link: the same file has another name outside the run; "
            f"replace it by a copy (cp {file.name} copy && mv copy {file.name}) and publish again"
        )


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigurationError(
            f"{path} is a symbolic link to {os.readlink(path)}, and links are not published; "
            "replace it by a copy and publish again"
        )


def _names_within(file: Path, run: Path) -> int:
    found = os.lstat(file)
    inside = (os.lstat(each) for each in run.rglob("*"))
    return sum(os.path.samestat(found, each) for each in inside)


def _shards(files: dict[str, Path]) -> Iterator[str]:
    for name, file in files.items():
        if name.endswith(".safetensors.index.json"):
            weights = _read_json(file).get("weight_map")
            if not isinstance(weights, dict):
                raise ConfigurationError(f"{file} has no weight_map; save the model again")
            yield from sorted(set(map(str, weights.values())))


def _commit_only(git: dict[str, Any] | None) -> dict[str, Any] | None:
    """The commit, and whether there were uncommitted changes; never the changes."""
    return git and {"commit": git.get("commit"), "changed": bool(git.get("diff"))}


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ConfigurationError(
            f"{file} does not exist; give the folder of a run of `trl-ablate train`"
        )
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{file} is not a JSON object; restore the file that the run wrote"
        )
    return found


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
