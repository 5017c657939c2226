"""Replacing a folder as a whole: after a kill there is the old one or the new one. No torch.

The new folder is made beside the old one, then two renames exchange them. If the process ends
between the two renames, both folders lie beside the empty path. The next start renames the old one
back; until then, `where_it_stands` finds it.
"""

import os
import shutil
from pathlib import Path


def part_of(folder: Path) -> Path:
    """The path where the new content of a folder is made."""
    return folder.with_name(f".{folder.name}.part")


def replace_folder(folder: Path) -> None:
    """Replace a folder by the one that was made at `part_of(folder)`."""
    part, old = part_of(folder), _old_of(folder)
    _restore(folder)
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    _remove(old)


def put_back(folder: Path) -> None:
    """After a kill: make the folder the old one or the new one; remove what is half made."""
    _restore(folder)
    _remove(part_of(folder))


def where_it_stands(folder: Path) -> Path:
    """The folder, or the former one if a kill came between the two renames."""
    old = _old_of(folder)
    return old if old.exists() and not folder.exists() else folder


def _old_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _restore(folder: Path) -> None:
    """Rename the former folder back if the path is empty; otherwise delete it."""
    old = _old_of(folder)
    if folder.exists():
        _remove(old)
    elif old.exists():
        os.replace(old, folder)


def _remove(folder: Path) -> None:
    """Of a link to a folder elsewhere, the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
