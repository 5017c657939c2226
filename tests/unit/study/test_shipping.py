"""A run that is copied back: whenever that is interrupted, its directory is the old or the new."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from trl_ablate.run.folders import put_back, where_it_stands
from trl_ablate.study.engines import PROGRAM, Job
from trl_ablate.study.engines.shipping import Landing, Piece, copy_code, pack


def job(folder: Path) -> Job:
    recipe = folder / "grpo.yaml"
    recipe.write_text("beta: 0.0\n")
    (folder / "store").mkdir()
    return Job([str(recipe), "--seed", "1"], folder / "store" / "run", folder / "log", 0, folder)


def archive(**files: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.mark.parametrize("cut", [1, 2])
def test_cut_off_between_the_renames_the_former_directory_is_put_back(tmp_path, monkeypatch, cut):
    one = job(tmp_path)
    landing = Landing(one)
    landing.begin()
    landing.take(Piece("archive", archive(new="the end")))
    renames, real = [], os.replace

    def replace(*paths):
        renames.append(paths)
        if len(renames) == cut:
            raise KeyboardInterrupt
        real(*paths)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        landing.take(Piece("ended"))
    monkeypatch.undo()
    assert (where_it_stands(one.directory) / "run.json").exists()
    put_back(one.directory)
    assert [path.name for path in one.directory.iterdir()] == ["run.json"]


def test_a_run_arrives_whole_and_leaves_nothing_beside(tmp_path):
    one = job(tmp_path)
    landing = Landing(one)
    landing.begin()
    landing.take(Piece("archive", archive(new="the end")))
    landing.take(Piece("ended", code=3))
    assert landing.code == 3
    assert [path.name for path in one.directory.parent.iterdir()] == ["run"]
    assert (one.directory / "new").read_text() == "the end"


def test_what_travels_is_the_package_as_it_is_installed(tmp_path):
    copy_code(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trl_ablate"]
    assert (tmp_path / "trl_ablate" / "__main__.py").exists()
    assert (tmp_path / "trl_ablate" / "prompts" / "r1_zero.txt").exists()
    shipped = tmp_path / "trl_ablate" / "shipped"
    assert (shipped / "grpo.yaml").exists() and (shipped / "profiles" / "miniature.yaml").exists()
    assert not list(tmp_path.rglob("*.png")) and not list(tmp_path.rglob("*.pyc"))


def test_a_bundle_names_the_program_and_its_own_files(tmp_path):
    bundle = pack(job(tmp_path))
    assert bundle.program == PROGRAM == ("-m", "trl_ablate", "train")
    assert bundle.words == ("recipes/grpo.yaml", "--seed", "1")
    assert bundle.files["recipes/grpo.yaml"] == b"beta: 0.0\n"
