"""A study file for the tests of studies."""

from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path):
    """`write(study, name=recipe, ...)`: recipes `name.yaml` beside a study; the study's path."""

    def write(study: str, **recipes: str) -> Path:
        for name, text in recipes.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "study.yaml").write_text(study)
        return tmp_path / "study.yaml"

    return write
