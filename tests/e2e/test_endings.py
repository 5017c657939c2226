"""How a run that did not reach its last step reports it: in its exit code and in `run.json`."""

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.warm import SMALL, Ended, model_and_data, warm

pytestmark = pytest.mark.slow

WORDS = [*SMALL, "--grpo_steps", "3", "--eval_steps", "10", "--save_steps", "10"]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Path, Path]:
    return model_and_data(tmp_path_factory.mktemp("world"))


@pytest.fixture
def end(world, tmp_path):
    """`end(sabotage, *words)`: how the run ended, and its record."""
    model, data = world
    places = ["--model_name_or_path", str(model), "--dataset", str(data)]
    output = tmp_path / "run"

    def end(sabotage, *words: str) -> tuple[Ended, dict]:
        words = (*WORDS, *places, "--output_dir", str(output), *words)
        ended = warm("train", *words, sabotage=sabotage).wait()
        return ended, json.loads((output / "run.json").read_text())

    return end


def a_callback_stops():
    from trl_ablate.training.callbacks import LiveLine

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2
        return control

    LiveLine.on_step_end = on_step_end


def no_data():
    """As where the questions make no rollout batch: the loader has nothing."""
    from trl_ablate.trainer.ablation import AblationTrainer

    AblationTrainer.get_train_dataloader = lambda self: []


def sigterm_while_the_model_is_loaded():
    from trl_ablate.training import lifecycle

    lifecycle.build_trainer = lambda *_: signal.raise_signal(signal.SIGTERM)


def sigterm_in_the_last_step():
    from trl_ablate.training.callbacks import LiveLine

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)

    LiveLine.on_step_begin = on_step_begin


@pytest.mark.parametrize(("sabotage", "reached"), [(a_callback_stops, 2), (no_data, 0)])
def test_a_run_that_ends_before_its_last_step_has_failed(end, sabotage, reached):
    ended, record = end(sabotage)
    assert (ended.code, record["status"]) == (1, "failed"), ended.stderr
    said = f"the training ended at step {reached} of 3, and neither the guard nor SIGTERM ended it"
    assert record["reason"].startswith(said) and f"error: {said}" in ended.stderr


def code_of_the_recipe_exits():
    from trl_ablate.training.callbacks import LiveLine

    LiveLine.on_step_end = lambda *_, **__: sys.exit(0)


def test_an_exit_within_the_training_is_a_failure(end):
    """As of a tool, an environment or a callback; rewards are looked after one by one."""
    ended, record = end(code_of_the_recipe_exits)
    assert (ended.code, record["status"]) == (1, "failed"), ended.stderr
    said = f"the training was ended by SystemExit: 0 (line 81 of {__file__}); remove the call"
    assert said in record["reason"] and f"error: {said}" in ended.stderr


def test_sigterm_before_the_first_step_is_in_the_record(end):
    ended, record = end(sigterm_while_the_model_is_loaded)
    assert (ended.code, record["status"], record["reason"]) == (75, "stopped", "ended by SIGTERM")


def test_sigterm_in_the_last_step_ends_nothing(end):
    ended, record = end(sigterm_in_the_last_step)
    assert (ended.code, record["status"], record["reason"]) == (0, "finished", None), ended.stderr
