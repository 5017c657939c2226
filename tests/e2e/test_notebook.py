"""The shipped notebook, executed by Jupyter as a reader does, but for the cell that installs."""

import os
import sys

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.run.json_files import read_object

NOTEBOOK = REPOSITORY / "recipes" / "notebooks" / "first_ablation.ipynb"
nbclient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed: pip install -e .[dev]"
)


@pytest.mark.long
def test_the_notebook_answers_its_question(tmp_path, monkeypatch):
    import nbformat

    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [c for c in notebook.cells if "install" not in c.metadata.get("tags", ())]
    place = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=900, resources=place).execute()
    report = read_object(tmp_path / "report" / "report.json")
    assert report["arms"]["no_baseline"]["pairs"] == 3
    shown = str(notebook.cells[-2].outputs)
    assert "no_baseline is worse than with_baseline" in shown and "image/png" in shown
    assert not [o for c in notebook.cells for o in c.get("outputs", ()) if o.output_type == "error"]
