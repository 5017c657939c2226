"""Code that a recipe names: `reward.py:score`, or `my_package.rewards.score`. No torch.

It is executed with all rights of the user when the recipe is trained, evaluated or checked (not
when it is only resolved): a recipe of a stranger is a program of a stranger. Data sets and models
cannot name code here.
"""

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trl_ablate.errors import ConfigurationError, brief, nearest

_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>.*))?", re.DOTALL)
_DOTTED = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class CodePlace:
    """Where a function is: a file or an importable module, and its name there."""

    module: str
    name: str
    is_file: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.name}" if self.is_file else f"{self.module}.{self.name}"


def code_place(text: str) -> CodePlace | None:
    """The place that `file.py:name` or `package.module.name` means; None for any other text."""
    if found := _FILE.fullmatch(text):
        if not (found["name"] or "").isidentifier():
            raise ConfigurationError(
                f"{text[:200]!r} names no function of the file; write FILE.py:FUNCTION"
            )
        return CodePlace(found["file"], found["name"], is_file=True)
    if found := _DOTTED.fullmatch(text):
        return CodePlace(found["module"], found["name"], is_file=False)
    return None


def load_code(place: CodePlace, what: str) -> Any:
    """Import the module, and take the object out of it; `what` begins every message."""
    if place.is_file:
        check_file(place, what)
    elif os.getcwd() not in sys.path:  # as `trl grpo` does
        sys.path.append(os.getcwd())
    load = file_module if place.is_file else importlib.import_module
    try:
        module = load(place.module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and place.module.startswith(str(error.name)):
            raise ConfigurationError(
                f"{what}: there is no module '{error.name}' to import {place} from; install it, "
                "or give a file as FILE.py:FUNCTION"
            ) from error
        raise _not_imported(place, what, error) from error
    if hasattr(module, place.name):
        return getattr(module, place.name)
    own, found = module.__name__, vars(module).items()
    there = sorted(n for n, one in found if callable(one) and getattr(one, "__module__", "") == own)
    meant = nearest(place.name, there) or "; name one of these"
    raise ConfigurationError(
        f"{what}: {place.module} has no '{place.name}'; it has "
        f"{', '.join(there) or 'no functions'}{meant}"
    )


def check_file(place: CodePlace, what: str) -> None:
    """Refuse a file that does not exist or is not Python; nothing is executed."""
    if not os.path.isfile(place.module):
        raise ConfigurationError(
            f"{what}: there is no file {place.module}; create it, or correct the path, which is "
            "relative to the recipe"
        )
    try:
        compile(Path(place.module).read_bytes(), place.module, "exec")
    except (SyntaxError, ValueError) as error:
        raise _not_imported(place, what, error) from error


def _not_imported(place: CodePlace, what: str, error: BaseException) -> ConfigurationError:
    where = ""
    if place.is_file and not isinstance(error, SyntaxError):
        line, file = line_of(error, str(Path(place.module).resolve()))
        where = f" (line {line} of {Path(file).name})"
    return ConfigurationError(
        f"{what}: {place.module} cannot be imported: {one_line(error)}{where}; correct the file"
    )


def file_module(path: str | Path) -> ModuleType:
    """The module of a file, imported once; it finds modules in its own folder."""
    file = Path(path).resolve()
    name = f"trl_ablate_own_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def waited_for(result: Any) -> Any:
    """What a call returned, or if the code is async, what it returns in the end."""

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited()) if inspect.isawaitable(result) else result


def one_line(error: BaseException) -> str:
    """The type and message of an error on one line, without control characters."""
    return brief(f"{type(error).__name__}: {error}", 300)


def line_of(error: BaseException, file: str | None) -> tuple[int, str]:
    """The line and file where an error was raised: the last one in `file`, if it passed there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    frame = (own or frames)[-1]
    return frame.lineno or 0, frame.filename
