"""A start changes nothing of the run in its folder until all checks have passed."""

import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.contents import contents
from tests.support.fake_train import alive
from tests.support.studies import wait_for
from tests.support.warm import SMALL, Ended, Running, model_and_data, warm
from trl_ablate.run.directory import RunDirectory

WORDS = [*SMALL, "--grpo_steps", "2", "--eval_steps", "1", "--save_steps", "1"]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A model and data, and a finished run."""
    folder = tmp_path_factory.mktemp("world")
    model_and_data(folder)
    assert start(folder, folder / "finished").code == 0
    return folder


def begin(world: Path, output: Path, *words: str, sabotage=None) -> Running:
    places = ["--model_name_or_path", str(world / "model"), "--dataset", str(world / "data")]
    training = [*WORDS, *places, "--output_dir", output, *words]
    return warm("train", *training, sabotage=sabotage)


def start(world: Path, output: Path, *words: str, sabotage=None) -> Ended:
    return begin(world, output, *words, sabotage=sabotage).wait()


@pytest.fixture
def finished(world, tmp_path) -> RunDirectory:
    """The finished run, and a file of the user in it."""
    shutil.copytree(world / "finished", tmp_path / "run")
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    return RunDirectory(tmp_path / "run")


def assert_refused(ended: Ended, said: str) -> None:
    assert ended.code == 2, ended.stderr
    assert said in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--overwrite", "--dataset", "typo.jsonl"], "there is no such file"),
        (["--overwrite", "--model_name_or_path", "/nowhere/model"], "could not be loaded"),
        (["--overwrite", "--train_size", "1"], "questions to train on"),
        (["--overwrite", "--start", "sft_nowhere"], "no such entry in starts"),
        ([], "holds a run already (finished)"),
        (["--resume", "--learning_rate", "1e-3"], "learning_rate"),
        (["--resume", "--seed", "7"], "seed 0 -> 7"),
        (["--resume", "--best_metric", "eval_format_reward"], "best_metric"),
        (["--resume", "--eval_size", "8"], "eval_size 16 -> 8"),
        (["--resume", "--use_peft", "true"], "use_peft"),
    ],
)
def test_a_refused_start_changes_no_file(world, finished, words, said):
    before = contents(finished.path)
    assert_refused(start(world, finished.path, *words), said)
    assert contents(finished.path) == before


def test_a_refused_start_does_not_block_the_next(world, tmp_path):
    assert_refused(start(world, tmp_path / "run", "--train_size", "1"), "questions to train on")
    assert contents(tmp_path / "run") == {}
    assert_refused(start(world, tmp_path / "run", "--start", "nowhere"), "no such entry in starts")


LEAVING = """
import os, sys, time

def exits(completions, **kwargs):
    sys.exit(0)

def ends(completions, **kwargs):
    os._exit(0)

def comes_back_twice(completions, **kwargs):
    return forked(completions, 0)

def stays_away(completions, **kwargs):
    return forked(completions, 600)

def forked(completions, seconds):
    if not os.path.exists(__file__ + ".pids"):  # once: processes that come back would fork again
        open(__file__ + ".pids", "w").close()
        if os.fork() == 0:
            with open(__file__ + ".pids", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(seconds)
    return [float(len(text)) for text in completions]
"""


@pytest.mark.parametrize(("name", "said"), [
    ("exits", "raised SystemExit: 0 (line 5 of "),
    ("ends", "raised SystemExit: 0 (line 8 of "),
    ("comes_back_twice", "forks, and the new process came back from it; "),
    ("stays_away", None),
])  # fmt: skip
@pytest.mark.parametrize("command", ["train", "check"])
def test_a_reward_cannot_end_or_double_the_program(world, tmp_path, command, name, said):
    file = tmp_path / "reward.py"
    file.write_text(LEAVING)
    words = ["--reward_funcs", f'["{file}:{name}"]']
    if command == "train":
        ended = start(world, tmp_path / "run", *words)
        rows = list(RunDirectory(tmp_path / "run").metrics())
        assert len({(row["step"], "eval_reward" in row) for row in rows}) == len(rows)
    else:
        ended = warm("check", *SMALL, "--dataset", str(world / "data"), *words).wait()
    if said is None:  # a length does not tell right from wrong, which is what the check reports
        assert ended.code == (command == "check") and "forks" not in ended.printed
    else:
        assert ended.code == 1 and f"reward function '{name}' {said}" in ended.printed
        assert "Traceback" not in ended.printed
    pids = Path(f"{file}.pids")
    made = pids.read_text().split() if pids.exists() else []
    assert bool(made) == (name in ("comes_back_twice", "stays_away"))
    wait_for(lambda: not any(alive(int(pid)) for pid in made))


def test_a_finished_run_without_checkpoints_is_not_lost_by_a_resume(world, finished):
    for folder in finished.checkpoints():
        shutil.rmtree(folder)
    before = contents(finished.path)
    assert_refused(start(world, finished.path, "--resume"), "no whole checkpoint to resume from")
    assert contents(finished.path) == before


@pytest.mark.slow
def test_a_resume_keeps_the_history_of_changed_settings(world, finished):
    longer = ["--resume", "--grpo_steps", "3"]
    assert start(world, finished.path, *longer, "--num_rollouts_saved", "3").code == 0
    (entry,) = finished.read()["changed_settings"]
    assert entry["settings"]["grpo_steps"] == [2, 3]
    assert entry["settings"]["num_rollouts_saved"][1] == 3
    assert entry["step"] == 2
    assert max(row["step"] for row in finished.metrics()) == 3


@pytest.mark.slow
def test_a_run_without_evaluation_has_none_at_its_start(world, tmp_path):
    assert start(world, tmp_path / "run", "--eval_strategy", "no").code == 0
    rows = RunDirectory(tmp_path / "run").metrics()
    assert rows and not any("eval_reward" in row for row in rows)


def wait_before_building(waiting: Path, go: Path) -> None:
    """The process writes a file before it builds its trainer, and goes on once the other exists."""
    from trl_ablate.training import lifecycle

    build = lifecycle.build_trainer

    def build_later(*args):
        waiting.touch()
        while not go.exists():
            time.sleep(0.02)
        return build(*args)

    lifecycle.build_trainer = build_later


@pytest.mark.slow
def test_the_second_start_in_an_empty_folder_writes_nothing(world, tmp_path):
    output, waiting, go = tmp_path / "run", tmp_path / "waiting", tmp_path / "go"
    first = begin(world, output, sabotage=partial(wait_before_building, waiting, go))
    first.wait_for(waiting.exists)
    second = start(world, output, "--learning_rate", "0.5")
    go.touch()
    assert_refused(second, "in use by another process")
    ended = first.wait()
    assert ended.code == 0, ended.stderr
    assert RunDirectory(output).settings()["learning_rate"] != 0.5


def test_a_checkpoint_that_is_named_is_refused(world, tmp_path):
    words = ["--resume_from_checkpoint", "x"]
    assert_refused(start(world, tmp_path / "run", *words), "use --resume")
    assert not (tmp_path / "run").exists()
