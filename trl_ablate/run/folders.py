"""A folder that is replaced as a whole: a kill leaves the old one or the new. No torch.

The new one is made beside, then two renames put it in the place of the old. A process that ends
between the two leaves both beside and none in the place; the old one is put back, and until then
found where it stands.
"""

import os
import shutil
from pathlib import Path


def part_of(folder: Path) -> Path:
    """Where the next content of a folder is made."""
    return folder.with_name(f".{folder.name}.part")


def replace_folder(folder: Path) -> None:
    """Put what was made at `part_of(folder)` in its place."""
    part, old = part_of(folder), _old_of(folder)
    _restore(folder)
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)


def put_back(folder: Path) -> None:
    """After a kill: the folder as it was before, or after; nothing half made is left beside."""
    _restore(folder)
    shutil.rmtree(part_of(folder), ignore_errors=True)


def where_it_stands(folder: Path) -> Path:
    """The folder; or the former one, where its replacement was cut off between the two renames."""
    old = _old_of(folder)
    return old if old.exists() and not folder.exists() else folder


def beside_while_replaced(folder: Path) -> tuple[Path, Path]:
    """What stands beside a folder while it is replaced."""
    return part_of(folder), _old_of(folder)


def _old_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _restore(folder: Path) -> None:
    """The former folder goes back to its place if that is empty, and away if it is not."""
    old = _old_of(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        os.replace(old, folder)
