"""The recipes of this repository, and where a file that a recipe names is looked for. No torch."""

import os
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[2] / "recipes"


def beside_or_shipped(name: str, recipe: Path) -> Path:
    """The file beside the recipe; if there is none, the shipped one of that name, if there is."""
    beside, shipped = recipe.parent / name, SHIPPED / name
    return shipped if not os.path.exists(beside) and os.path.exists(shipped) else beside
