"""The cache folder of the miniature's models: each model is built once and kept.

The folder's name contains the stage and a hash of everything that determines the weights. So a
change of the code builds a new model, but a moved import or a changed docstring does not. A model
is written to a temporary folder and then renamed, under a lock: readers never see a partial model,
and two processes do not build the same model.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trl_ablate.miniature.corpus import corpus, right_solutions
from trl_ablate.miniature.teaching import Lesson, new_model, teach
from trl_ablate.prompts.templates import TEMPLATES, prompt_text
from trl_ablate.run.untrusted import SafeConsole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

Stage = Literal["base", "sft_early", "sft_mid", "sft_final"]

SFT_LESSON = Lesson(
    steps=0, texts_per_step=32, matrix_rate=1e-3, other_rate=2e-4, warmup=0, cooldown_share=0.0
)
LESSONS: dict[Stage, Lesson] = {
    "base": Lesson(steps=240, texts_per_step=96, matrix_rate=0.02, other_rate=4e-3),
    "sft_early": SFT_LESSON._replace(steps=8),
    "sft_mid": SFT_LESSON._replace(steps=20),
    "sft_final": SFT_LESSON._replace(steps=45),
}


def build(
    stage: Stage = "base", *, cache_dir: str | Path | None = None, progress: bool = True
) -> Path:
    """The folder of the miniature's model at this stage; builds the model if needed."""
    if stage not in get_args(Stage):
        raise ValueError(f"stage is {stage!r}; allowed are {', '.join(get_args(Stage))}")
    home = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
    folder = home / "miniature" / f"{stage}-{cache_key()}"
    if folder.is_dir():
        return folder
    start = None if stage == "base" else build("base", cache_dir=cache_dir, progress=progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not folder.is_dir():
            _make(stage, start, folder, progress)
    return folder


def default_cache_dir() -> Path:
    """`$TRL_ABLATE_CACHE`, else `trl_ablate` in the user's cache folder."""
    if chosen := os.environ.get("TRL_ABLATE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trl_ablate"


def cache_key() -> str:
    """A short hash of this package's code and of the prompts that the base model is trained on."""
    digest = hashlib.sha256()
    package = resources.files("trl_ablate.miniature")
    sources = [entry for entry in package.iterdir() if entry.name.endswith(".py")]
    for source in sorted(sources, key=lambda entry: entry.name):
        code = _normalised(source.read_text(encoding="utf-8"))
        digest.update(source.name.encode() + b"\0" + code.encode())
    for template in TEMPLATES:
        digest.update(template.encode() + b"\0" + prompt_text(template, "short").encode())
    return digest.hexdigest()[:12]


def _normalised(source: str) -> str:
    """The code without imports, comments, docstrings and layout: they cannot affect a weight."""
    return ast.unparse(_Bare().visit(ast.parse(source)))


class _Bare(ast.NodeTransformer):
    """Removes imports, and statements that are just a string."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else node


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends, for any reason."""
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(stage: Stage, start: Path | None, folder: Path, progress: bool) -> None:
    """Train the model and move it to its folder; the caller holds the folder's lock."""
    from trl_ablate.miniature.tokens import tokenizer

    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a build that was killed
    words = tokenizer()
    lesson = LESSONS[stage]
    with _live_line(stage, lesson.steps, folder, progress) as on_step, _no_bars_of_transformers():
        model = _teach_stage(start, words, lesson, on_step)
        model.save_pretrained(partial)
        words.save_pretrained(partial)
    os.replace(partial, folder)


def _teach_stage(
    start: Path | None,
    words: PreTrainedTokenizerFast,
    lesson: Lesson,
    on_step: Callable[[float], None],
) -> Qwen2ForCausalLM:
    """A new model trained on the corpus, or the model at `start` trained on right solutions."""
    from transformers import Qwen2ForCausalLM

    if start is None:
        model, texts = new_model(words), corpus(seed=0)
    else:
        model, texts = Qwen2ForCausalLM.from_pretrained(start), right_solutions(seed=0)
    teach(model, words, texts, lesson, on_step)
    return model


@contextmanager
def _live_line(
    stage: Stage, steps: int, folder: Path, shown: bool
) -> Iterator[Callable[[float], None]]:
    """A progress line on stderr; prints nothing if not `shown`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = SafeConsole(stderr=True, quiet=not shown, soft_wrap=True)
    console.print(f"Making the miniature's {stage} model, once; it will be kept in {folder}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}  loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task(f"miniature {stage}", total=steps, loss=float("nan"))
        yield lambda loss: bar.update(task, advance=1, loss=loss)


@contextmanager
def _no_bars_of_transformers() -> Iterator[None]:
    """Hide transformers' progress bars for small files, which would break the progress line."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
