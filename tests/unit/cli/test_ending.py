"""How commands end: exit code and message of every error, and output whose reader is closed."""

import errno
import os
import subprocess
import sys

import pytest

from trl_ablate.cli.ending import exit_code_of
from trl_ablate.cli.terminal import show_end
from trl_ablate.errors import ConfigurationError, PublishError, RewardError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.termination import Terminated


def ending(capsys, error: BaseException, **options) -> tuple[int, str]:
    def work() -> int:
        raise error

    code = exit_code_of(work, stopped="nothing was written", **options)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ConfigurationError("x is 3; give 2"), 2, "error: x is 3; give 2"),
        (PublishError("the Hub refused"), 1, "error: the Hub refused"),
        (RewardError("reward f raised"), 1, "error: reward f raised"),
        (KeyboardInterrupt(), 130, "stopped; nothing was written"),
        (Terminated(), 130, "stopped by SIGTERM; nothing was written"),
        (OSError(errno.ENOSPC, "No space left on device"), 1,
         "error: the disk is full; free some space, then run the same command again"),
        (OSError(errno.EROFS, "", "runs/a"), 2,
         "error: runs/a is on a read-only file system; choose a folder elsewhere"),
        (OSError(errno.EIO, "Broken disk", "runs/a"), 1, "error: runs/a: Broken disk"),
    ],
)  # fmt: skip
def test_every_error_has_its_code_and_an_unknown_one_its_traceback(capsys, error, code, sentence):
    assert ending(capsys, error) == (code, f"{sentence}\n")
    with pytest.raises(ZeroDivisionError):
        ending(capsys, ZeroDivisionError("division by zero"))


def test_training_is_told_how_to_continue(capsys):
    full = OSError(errno.ENOSPC, "No space left on device", "a/metrics.jsonl")
    for error, expected, words in ((Terminated(), 75, "SIGTERM"), (full, 1, "(a/metrics.jsonl)")):
        code, said = ending(capsys, error, resumable=True)
        assert code == expected and words in said and "--resume" in said


@pytest.mark.parametrize(
    ("work", "wrong", "remedy"),
    [
        (lambda at: (at / "file/runs").mkdir(), "file/runs", "must be a folder; choose another"),
        (lambda at: (at / "absent.csv").read_text(), "absent.csv", "does not exist; check the"),
        (lambda at: (at / "dangling").read_text(), "is a symbolic link to", "remove the link"),
        (lambda at: at.read_text(), "is a folder", "but must be a file; choose another path"),
        (lambda at: (at / "out").write_text("caf\udce9", "utf-8"), r"caf\udce9", "are not UTF-8"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_sentence(capsys, tmp_path, work, wrong, remedy):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    code = exit_code_of(lambda: work(tmp_path) or 0, stopped="")
    said = capsys.readouterr().err
    assert code == 2 and wrong in said and remedy in said
    assert said.startswith("error: ") and said.count("\n") == 1


def test_the_end_of_a_run_of_which_an_evaluation_graded_nothing(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    run.update(seconds=3.0)
    for step, reward in enumerate((None, 0.25, 0.5, None)):
        run.append_metrics({"step": step, "eval_reward": reward, "eval_reward_stderr": None})
    for on_trackio in (True, False):
        show_end(run, on_trackio=on_trackio)
        shown = " ".join(capsys.readouterr().out.split())
        assert "first 0.250 eval reward, best 0.500 at step 2 eval reward, last 0.500 m" in shown
        assert ("trackio show" in shown) is on_trackio


LINES = """
import sys
from pathlib import Path
from trl_ablate.cli.ending import exit_code_of
from trl_ablate.cli.terminal import console

def work():
    for number in range(3000):
        console.print(f"line {number} " + "x" * 60)
        print("from a library", number)
    sys.stderr.write("at the end\\n")
    Path(sys.argv[1]).write_text("done")
    return 0

sys.exit(exit_code_of(work, stopped=""))
"""


def printing(folder, stdout) -> subprocess.Popen:
    words = [sys.executable, "-c", LINES, str(folder / "end")]
    return subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_command_whose_reader_leaves_continues_to_its_end(tmp_path):
    """As `trl-ablate … | head -1`."""
    process = printing(tmp_path, subprocess.PIPE)
    assert process.stdout and process.stderr
    assert process.stdout.readline().startswith("line 0")
    process.stdout.close()
    assert process.stderr.read() == "at the end\n"
    assert process.wait(60) == 0
    assert (tmp_path / "end").read_text() == "done"


@pytest.mark.parametrize("words", ["--help", "--version", "tarin", "study --help"])
def test_help_for_a_reader_that_left_and_on_a_full_disk(words):
    command = [sys.executable, "-m", "trl_ablate", *words.split()]
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed, open("/dev/full", "w") as full:
        left, out_of_room = (
            subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
            for out in (closed, full)
        )
    wrong = words == "tarin"  # which prints nothing on standard output
    assert (left.returncode, "Broken" in left.stderr) == (2 if wrong else 0, False)
    assert out_of_room.returncode == (2 if wrong else 1)
    assert out_of_room.stderr.startswith("error: ") and out_of_room.stderr.count("\n") == 1


def test_a_full_disk_behind_standard_output_is_one_sentence(tmp_path):
    with open("/dev/full", "w") as full:
        process = printing(tmp_path, full)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("error: the disk is full") and said.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [("recipes >&-", 0), ("tarin 2>&-", 2)])
def test_a_command_whose_output_has_nowhere_to_go(words, code):
    line = f"{sys.executable} -m trl_ablate {words}"
    done = subprocess.run(line, shell=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
