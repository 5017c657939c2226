"""What a run publishes: its records without secrets, its files by their fixed names, and the model
and the data as the Hub knows them. No torch."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.utils import HFValidationError, validate_repo_id

from trl_ablate.data.row_files import is_on_the_hub
from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD, REWARD
from trl_ablate.reward_specs import GYM
from trl_ablate.run.checkpoints import check_seal
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import where_it_stands
from trl_ablate.run.json_files import read_object
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.run.picture import draw_curves

Source = Path | bytes
"""A local file, unchanged, or content that was created or cleaned for publishing."""

MINIATURE = "miniature"
BEST, LAST = "checkpoint_best", "checkpoint_last"
BEST_NOTE = "best.json"
"""Metric, value and step in `checkpoint_best`; not repeated at the root."""
OVER = ("finished", "stopped", "failed")
"""The states of a run that has ended."""
PICTURE = "curves.png"
RECORDS = ("run.json", "resolved_config.json", "metrics.jsonl", "alerts.jsonl", PICTURE)
ADAPTER = "adapter_config.json"
KEY_ROLLOUTS = 4
"""Number of rollout files published besides the best step's: first, last, and evenly between."""

_MODEL_FILE = re.compile(
    r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors|(adapter_)?model\.safetensors\.index\.json"
    r"|(adapter_|generation_|tokenizer_|(image_|video_)?(pre)?processor_)?config\.json"
    r"|(best|vocab|tokenizer|special_tokens_map|added_tokens|chat_template)\.json"
    r"|vocab\.txt|merges\.txt|(tokenizer|spiece|sentencepiece\.bpe)\.model|chat_template\.jinja"
)
"""The files that transformers and PEFT write for a model and its tokenizer; other files beside them
are not published."""


_PLACE = re.compile(r"(?<![\w.~:/<>-])(miniature/)?/(?:[\w.@+-]+/)+(?=[\w.@+-])")
"""The folders of an absolute path, also of a world's file, which are published as `…`."""


PROGRAMS = {
    "scripts/train.py": ["accelerate", "launch", "scripts/train.py"],
    "trl_ablate/__main__.py": ["trl-ablate"],
    "bin/trl-ablate": ["trl-ablate"],
}
"""The programs of this package, by the end of their path, and how they are called."""


def without_folder(program: str) -> str:
    """A program of this package by the end of its path; another one as it is."""
    return next((end for end in PROGRAMS if program.endswith(end)), program)


def is_of_a_run(path: str) -> bool:
    """Whether the file of a repository is of a published run, which the next one replaces: a second
    set of weights at the root would make `from_pretrained` load the wrong one. All others are the
    user's."""
    folder, _, name = path.rpartition("/")
    if folder:
        return path.partition("/")[0] in (BEST, LAST, "rollouts")
    weights = name.endswith((".safetensors", ".safetensors.index.json"))
    return weights or name in RECORDS or _MODEL_FILE.fullmatch(name) is not None


def hub_id(name: str | None) -> str | None:
    """The name, if it can be an id on the Hub: OWNER/NAME, not a path, the miniature or a gym."""
    if not name or "/" not in name or name.startswith((f"{MINIATURE}/", GYM)):
        return None
    with suppress(HFValidationError):
        validate_repo_id(name)
        return name if is_on_the_hub(name) else None
    return None


def check_name(name: str | None) -> None:
    """Refuse what cannot be the name of a repository; the default, None or empty, can."""
    try:
        validate_repo_id(name or "default")
    except HFValidationError as error:
        raise ConfigurationError(
            f"'{name}' is no name of a repository; give OWNER/NAME or NAME, of letters, digits, "
            "'-', '_' and '.'"
        ) from error


@dataclass(frozen=True)
class FinishedRun:
    """The records of a run that has ended, without secrets.

    Attributes:
        record: `run.json`, without the machine's name and the git diff.
        config: `resolved_config.json`.
        rows: `metrics.jsonl`.
    """

    path: Path
    record: dict[str, Any]
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    masker: Masker

    @property
    def name(self) -> str:
        """Arm and seed, or the folder's name."""
        arm, seed = self.record.get("arm"), self.record.get("seed")
        return f"{arm}-seed{seed}" if arm is not None else self.path.resolve().name

    @property
    def repository(self) -> str:
        """The name with what the Hub allows in the name of a repository."""
        allowed = re.sub(r"(?:[^\w.]|\.{2,})+", "-", self.name, flags=re.ASCII).strip("-.")
        return allowed[-96:].lstrip("-.")  # with the seed

    @property
    def base(self) -> str | None:
        """Model id or folder that training started from."""
        task = self.config["task"]
        if task["start"] == "base":
            return self.config["model"]["model_name_or_path"]
        return (task["starts"] or {}).get(task["start"])

    @property
    def base_revision(self) -> str | None:
        """None for `main`."""
        given = {"revision": self.config["model"].get("model_revision")}
        given |= self.config["config"].get("model_init_kwargs") or {}
        return None if given["revision"] == "main" else given["revision"]

    @property
    def is_miniature(self) -> bool:
        return (self.base or "").partition("/")[0] == MINIATURE

    @property
    def dataset(self) -> str | None:
        """The dataset's id on the Hub, or None for files and the miniature."""
        from trl_ablate.data.questions import NAMED_DATASETS  # imports pyarrow, which others spare

        name = self.config["task"]["dataset"]
        return NAMED_DATASETS[name].hub_id if name in NAMED_DATASETS else hub_id(name)

    @cached_property
    def checkpoints(self) -> dict[str, dict[str, Path]]:
        """`checkpoint_best` and `checkpoint_last`, if they exist: file name -> file."""
        folders = {name: where_it_stands(self.path / name) for name in (BEST, LAST)}
        return {name: _model_files(at) for name, at in folders.items() if at.is_dir()}

    @property
    def chosen(self) -> str:
        """The checkpoint that the repository's root holds."""
        return BEST if BEST in self.checkpoints else LAST

    @property
    def is_adapter(self) -> bool:
        return ADAPTER in self.checkpoints[self.chosen]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluated rows by step; of a step that occurs twice, after a resume, the last row."""
        evaluated = {row["step"]: row for row in self.rows if row.get("eval_reward") is not None}
        return [evaluated[step] for step in sorted(evaluated)]

    @property
    def best_evaluation(self) -> dict[str, Any] | None:
        """The evaluation that chose `checkpoint_best`, of which a resume from an earlier step may
        have left only what is noted there; or else the one with the highest reward."""
        best = RunDirectory(self.path).best()
        if best is None:
            return max(self.evaluations, key=lambda row: row["eval_reward"], default=None)
        noted = {"step": best["step"], best["metric"]: best["value"]}
        return next((row for row in self.evaluations if noted.items() <= row.items()), noted)

    def files(self) -> dict[str, Source]:
        """Path in the repository -> content, without the card, which depends on the Hub."""
        run = RunDirectory(self.path)
        published: dict[str, Source] = {
            "run.json": _json(self.record),
            "resolved_config.json": _json(self.config),
        }
        rollouts = key_rollouts(run.rollout_files(), self.best_evaluation)
        for file in (run.metrics_file, run.alerts_file, *rollouts):
            if file.is_file() and (content := self._cleaned(file)):
                published[file.relative_to(self.path).as_posix()] = content
        for name, files in self.checkpoints.items():
            model = {file: self._checked(at) for file, at in files.items()}
            published |= {f"{name}/{file}": source for file, source in model.items()}
            if name == self.chosen:
                published |= {file: source for file, source in model.items() if file != BEST_NOTE}
        picture = draw_curves(self.rows)
        return published | ({} if picture is None else {PICTURE: picture})

    def _cleaned(self, file: Path) -> bytes:
        """The whole lines of a JSONL file, without secrets."""
        try:
            text = _own(file).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{file} is not UTF-8 ({error}); restore it") from error
        return self.masker.text(text[: text.rfind("\n") + 1]).encode()

    def _checked(self, file: Path) -> Source:
        """The file; of an adapter's config, which names the folder of its base here, a copy that
        names the base as the run does."""
        if file.suffix != ".safetensors" and not self.masker.is_clean(file.read_bytes()):
            raise ConfigurationError(
                f"{file} contains what looks like a token, and model files are published "
                "unchanged; remove it from the file and publish again"
            )
        if file.name != ADAPTER:
            return file
        named = {"base_model_name_or_path": self.base, "revision": self.base_revision}
        return _json({**read_object(file), **named})


def read_run(run: RunDirectory, token: str | None = None) -> FinishedRun:
    """The run, ready to publish; raises `ConfigurationError` with the reason if it is not."""
    for file in (run.run_file, run.config_file):
        if not _own(file).is_file():
            raise ConfigurationError(
                f"{file} does not exist; give the folder of a run of `trl-ablate train`"
            )
    record, config = run.read(), read_object(run.config_file)
    needed = ("config", "model", "settings", "task")  # by the card
    missing = [name for name in needed if not isinstance(config.get(name), dict)]
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
    git = record.get("git") or {}
    public = {key: value for key, value in record.items() if key != "host"}
    public["command"] = masker.words([*map(without_folder, command[:1]), *command[1:]])
    public["git"] = git and {"commit": git.get("commit"), "changed": bool(git.get("diff"))}
    rows = [_drawable(row, run) for row in run.metrics()]
    shown = [json.dumps(masker.value(one), ensure_ascii=False) for one in (public, config)]
    public, config = (json.loads(_PLACE.sub(r"\1…/", text)) for text in shown)
    finished = FinishedRun(run.path, public, config, rows, masker)
    if not finished.checkpoints:
        raise ConfigurationError(
            f"{run.path} has neither {BEST} nor {LAST}, so there is no model to publish"
        )
    return finished


def _drawable(row: dict[str, Any], run: RunDirectory) -> dict[str, Any]:
    """The row; refuses a reward that the card and the picture cannot show."""
    rewards = [row[key] for key in (REWARD, EVAL_REWARD) if row.get(key) is not None]
    numbers = (row.get("grpo_step"), *rewards)
    if rewards and not all(isinstance(one, int | float) for one in numbers):
        raise ConfigurationError(
            f"{run.metrics_file}: a reward of step {row['step']} or its grpo_step is no number; "
            "restore the file"
        )
    return row


def key_rollouts(files: list[Path], best: Mapping[str, Any] | None) -> list[Path]:
    """The first, the last, evenly spaced ones between, and the one nearest the best evaluation."""
    steps = {int(file.stem.removeprefix("step_")): file for file in files}
    ordered, gaps = sorted(steps), KEY_ROLLOUTS - 1
    if len(files) <= KEY_ROLLOUTS:
        return [steps[step] for step in ordered]
    chosen = {ordered[round(i * (len(files) - 1) / gaps)] for i in range(KEY_ROLLOUTS)}
    if best is not None:
        chosen.add(min(ordered, key=lambda step: abs(step - best["step"])))
    return [steps[step] for step in sorted(chosen)]


def _model_files(folder: Path) -> dict[str, Path]:
    """A checkpoint's files for `from_pretrained`, without pickles; refuses an incomplete one."""
    check_seal(_own(folder))
    named = [file for file in sorted(folder.iterdir()) if _MODEL_FILE.fullmatch(file.name)]
    files = {file.name: _own(file) for file in named}
    if not any(name.endswith(".safetensors") for name in files):
        raise ConfigurationError(
            f"{folder} is not a complete model: a .safetensors file is missing (only safetensors "
            "files are published)"
        )
    return files


def _own(path: Path) -> Path:
    """The path; refuses a link, which could publish any file of this machine."""
    if path.is_symlink() or path.parent.is_symlink() and path.parent.name == "rollouts":
        raise ConfigurationError(
            f"{path} is a symbolic link, or in a linked folder, and links are not published; "
            "replace it by a copy and publish again"
        )
    return path


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
