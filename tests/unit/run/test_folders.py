"""A folder is replaced as a whole, at whatever moment the process ends."""

import os

import pytest

from trl_ablate.run import folders
from trl_ablate.run.folders import part_of, put_back, replace_folder, where_it_stands

CHANGES = {"replace": folders.os, "rmtree": folders.shutil}
"""The functions by which a replacement changes the disk, and the modules that have them."""
KILLED = 9


@pytest.fixture
def folder(tmp_path):
    """A folder that holds `old`, with `new` made beside it."""
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model").write_text("old")
    make_part(tmp_path / "best", "new")
    return tmp_path / "best"


def make_part(folder, content):
    part_of(folder).mkdir(exist_ok=True)
    (part_of(folder) / "model").write_text(content)


def content(folder) -> str:
    return (folder / "model").read_text()


def replace_and_die(folder, steps: int) -> bool:
    """Replace the folder in a forked process that exits before its change number `steps`; whether
    it got that far."""
    child = os.fork()
    if child == 0:
        left = iter(range(steps))
        for name, module in CHANGES.items():
            setattr(module, name, _dying(getattr(module, name), left))
        try:
            replace_folder(folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def _dying(change, left):
    def changed(*args, **kwargs):
        if next(left, None) is None:
            os._exit(KILLED)
        return change(*args, **kwargs)

    return changed


@pytest.mark.parametrize("steps", range(5))
def test_killed_at_each_point_one_of_them_is_whole(folder, steps):
    (part_of(folder) / "shard-9").write_text("half")
    put_back(folder)  # what a kill left unfinished is no part of the next
    make_part(folder, "new")
    killed = replace_and_die(folder, steps)
    assert content(where_it_stands(folder)) == ("old" if steps < 3 else "new")
    put_back(folder)
    assert content(folder) == ("old" if steps < 3 else "new")
    assert [path.name for path in folder.parent.rglob("*")] == ["best", "model"]
    assert killed == (steps < 4), "the swap has another number of steps than is tried here"


def test_a_link_to_a_folder_elsewhere_is_replaced_and_the_folder_stays(folder, tmp_path):
    for name in ("first", "second"):
        there = tmp_path.with_name(f"{tmp_path.name}-{name}")
        folder.rename(there)
        folder.symlink_to(there)
        replace_folder(folder)
        assert content(folder) == "new" and there.is_dir() and [*tmp_path.iterdir()] == [folder]
        make_part(folder, "new")


@pytest.mark.sample(8)
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in range(5) for b in range(6)])
def test_killed_again_in_the_next_swap_one_of_them_is_whole(folder, first, second):
    """The former folder is not removed while it is the only one, even if it was not restored."""
    replace_and_die(folder, first)
    make_part(folder, "newer")
    replace_and_die(folder, second)
    assert content(where_it_stands(folder)) in ("old", "new", "newer")
    if part_of(folder).exists():
        replace_folder(folder)
    assert content(folder) == "newer"
