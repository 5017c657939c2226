"""What a folder holds, to compare it before and after."""

import hashlib
from pathlib import Path


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of its bytes."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
