"""The miniature's models: some bases come with the package, other models are built once and kept in
the user's cache folder.

A model's folder is named after its stage and a hash of everything that determines the weights: a
change of the code builds a new model, but a moved import or a changed docstring does not. A model
is written to a temporary folder and then renamed, under a lock: readers never see a partial model.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

from trl_ablate.miniature.registry import DEFAULT, STAGES, world_named
from trl_ablate.miniature.teaching import taught
from trl_ablate.miniature.tokens import tokenizer_of
from trl_ablate.miniature.world import Stage, World
from trl_ablate.prompts.templates import prompt_text
from trl_ablate.run.untrusted import SafeConsole

SHIPPED = Path(__file__).parent / "models"
"""The models that come with the package, in folders `WORLD/STAGE-KEY` as in the cache."""
KEEPERS = ("cache.py", "registry.py")
"""The modules that keep, name and run models, and cannot change a weight."""


def build(
    stage: Stage = "base",
    *,
    world: str | World = DEFAULT,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Path:
    """The folder of the world's model at this stage; builds the model if needed, or if a cache
    folder is given that does not have it."""
    if stage not in STAGES:
        raise ValueError(f"stage is {stage!r}; allowed are {', '.join(STAGES)}")
    world = world_named(world)
    name = f"{world.name}/{stage}-{cache_key(world)}"
    if cache_dir is None and (SHIPPED / name).is_dir():
        return SHIPPED / name
    home = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
    folder = home / "miniature" / name
    if folder.is_dir():
        return folder
    start = None
    if stage != "base":
        start = build(world=world, cache_dir=cache_dir, progress=progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not folder.is_dir():
            _make(world, stage, start, folder, progress)
    return folder


def default_cache_dir() -> Path:
    """`$TRL_ABLATE_CACHE`, else `trl_ablate` in the user's cache folder."""
    if chosen := os.environ.get("TRL_ABLATE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "trl_ablate"


def cache_key(world: str | World = DEFAULT) -> str:
    """A short hash of what determines the weights: this package's code, the world's files, and
    the prompts that the base model is trained on."""
    world, digest = world_named(world), hashlib.sha256()
    package = resources.files("trl_ablate.miniature")
    sources = [
        entry
        for entry in package.iterdir()
        if entry.name.endswith(".py") and entry.name not in KEEPERS
    ]
    for source in (*sorted(sources, key=lambda entry: entry.name), *map(Path, world.files)):
        code = ast.unparse(_Bare().visit(ast.parse(source.read_text(encoding="utf-8"))))
        digest.update(source.name.encode() + b"\0" + code.encode())
    for template in world.template_shares:
        digest.update(template.encode() + b"\0" + prompt_text(template, "short").encode())
    return digest.hexdigest()[:12]


class _Bare(ast.NodeTransformer):
    """Removes imports, and statements that are just a string: they cannot affect a weight."""

    def visit(self, node: ast.AST) -> Any:
        value = node.value if isinstance(node, ast.Expr) else None
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            return None
        return self.generic_visit(node)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends."""
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(world: World, stage: Stage, start: Path | None, folder: Path, progress: bool) -> None:
    """Train the model and move it to its folder; the caller holds the folder's lock."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a build that was killed
    words = tokenizer_of(world)
    shown = _live_line(world, stage, folder) if progress else nullcontext(lambda loss: None)
    with shown as on_step, no_bars_of_transformers():
        model = taught(world, stage, words, start, on_step)
        model.save_pretrained(partial)
        words.save_pretrained(partial)
    os.replace(partial, folder)


@contextmanager
def _live_line(world: World, stage: Stage, folder: Path) -> Iterator[Callable[[float], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, steps = SafeConsole(stderr=True, soft_wrap=True), world.lessons()[stage].steps
    if stage == "base" and world.first_lesson is not None:
        steps += world.first_lesson.steps
    console.print(
        f"Making the miniature's {stage} model of {world.name}, once; it will be kept in {folder}"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}  loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{world.name} {stage}", total=steps, loss=float("nan"))
        yield lambda loss: bar.update(task, advance=1, loss=loss)


@contextmanager
def no_bars_of_transformers() -> Iterator[None]:
    """Hide transformers' progress bars for small files, which would break the progress line."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
