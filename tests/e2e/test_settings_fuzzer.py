"""Every setting × edge values: two steps are trained, or one sentence comes before the model.

Every sixteenth case by default; `TRL_ABLATE_SETTINGS=16` tries all, which takes half an hour.
"""

import contextlib
import gc
import os
import resource
import shutil
import signal
import traceback
from collections import Counter
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.settings_cases import cases, context
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.rewards import grader_of
from trl_ablate.run.json_files import write_jsonl
from trl_ablate.training import building, models
from trl_ablate.training.machine import check_device

CASES = list(cases())
SLICES = 16
TRIED = int(os.environ.get("TRL_ABLATE_SETTINGS", "1"))
"""Slices that are tried."""
SECONDS = 60
GIB = 2**30

DIVERGES = ("probability tensor contains", "NaN", "nan")
"""What a training that diverges ends with; that is an outcome, and no setting by itself."""


@pytest.fixture(scope="module")
def world(tiny_model, tmp_path_factory) -> dict[str, Any]:
    """Settings of a training of a second, which every case changes one of."""
    folder = tmp_path_factory.mktemp("fuzzed")
    rows = [{"question": f"{a}+{a + 3}=?", "answer": str(2 * a + 3)} for a in range(11, 27)]
    write_jsonl(folder / "questions.jsonl", rows)
    sizes = dict.fromkeys(("generation_batch_size", "optimizer_batch_size"), 8)
    sizes |= dict.fromkeys(("num_generations", "per_device_train_batch_size"), 4)
    return sizes | {
        "model_name_or_path": tiny_model,
        "dataset": str(folder / "questions.jsonl"),
        "output_dir": str(folder / "run"),
        "eval_split": "train",
        "train_size": None,
        "eval_size": 2,
        "grpo_steps": 2,
        "per_device_eval_batch_size": 4,
        "max_completion_length": 6,
        "eval_steps": 2,
        "eval_on_start": False,
        "save_steps": 2,
        "report_to": "none",
        "grader_workers": 1,
        "learning_rate_scale": 1.0,
    }


def resolved(world: dict[str, Any], name: str, value: Any):
    settings = {**world, **context(name), name: value}
    return load_recipe(SHIPPED / "grpo.yaml", "miniature", settings)


def trained(world: dict[str, Any], name: str, value: Any) -> str:
    """How it ends: `refused`, `trained` or `diverged`, or what is wrong with the end."""
    with patch.object(models, "check_finite", wraps=models.check_finite) as loaded:
        try:
            asked = resolved(world, name, value)
            check_device(asked)
            with grader_of(asked.task) as grader:
                trainer = building.build_trainer(asked, grader)
                trainer.train()
            return "trained" if trainer.state.global_step >= 1 else "no step"
        except ConfigurationError as error:
            sentence = str(error)
            in_words = sentence and "\n" not in sentence and len(sentence) < 2000
            return "refused" if in_words and not loaded.called else f"refused late: {sentence}"
        except Exception as error:
            if any(sign in str(error) for sign in DIVERGES) and value == value:  # NaN is refused
                return "diverged"
            return "".join(traceback.format_exception_only(error)) + traceback.format_exc()[-500:]


def in_limits(end: Connection, *case: Any) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (24 * GIB, 24 * GIB))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    end.send(trained(*case))
    os._exit(0)


def in_a_process(world: dict[str, Any], name: str, value: Any) -> str:
    """`trained` in a forked process, with bounds on time, memory and files."""
    shutil.rmtree(world["output_dir"], ignore_errors=True)
    ours, theirs = Pipe(duplex=False)
    child = get_context("fork").Process(target=in_limits, args=(theirs, world, name, value))
    child.start()
    theirs.close()
    assert (pid := child.pid) is not None
    found = f"no end within {SECONDS} s, or killed"
    with contextlib.suppress(EOFError):
        found = ours.recv() if ours.poll(SECONDS) else found
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    child.join()
    return found


@pytest.fixture(scope="module")
def warm(world):
    """Forks share what a first training has imported, and do not collect it."""
    assert trained(world, "seed", 3) == "trained"
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(TRIED))
def test_a_setting_trains_or_is_refused_in_one_sentence(world, warm, part):
    ends = [(*case, in_a_process(world, *case)) for case in CASES[part::SLICES]]
    assert [one for one in ends if one[-1] not in ("trained", "refused", "diverged")] == []


def test_a_setting_resolves_or_is_refused_in_one_sentence(world):
    """The fast slice: every twelfth case, and nothing is trained."""
    outcomes = Counter()
    for name, value in CASES[::12]:
        try:
            resolved(world, name, value)
            outcomes["resolved"] += 1
        except ConfigurationError as error:
            assert str(error).isprintable() and len(str(error)) < 2000, (name, value)
            outcomes["refused"] += 1
    assert min(outcomes["resolved"], outcomes["refused"]) > 30
