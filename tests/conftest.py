"""Shared fixtures: a tiny Qwen2 with random weights, and trainers over it without a download."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # faster for models this small, and repeatable
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import functools  # noqa: E402
import gc  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("no deadlines", deadline=None, max_examples=50)  # a machine may be busy
settings.load_profile("no deadlines")
gc.disable()  # until all tests are imported: see `pytest_collection_finish`

from tests.support.sampling import mark_the_others  # noqa: E402
from tests.support.tiny_models import save_tiny_qwen2  # noqa: E402
from tests.support.trainers import PROMPTS, SMALL, digits  # noqa: E402

# A shell that starts tests in the background lets them ignore Ctrl-C, and so all they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects what is slow
def pytest_collection_modifyitems(items):
    mark_the_others(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests.support.scheduling import WholeFilesOfCommands

    return WholeFilesOfCommands(config, log)


def pytest_collection_finish():
    """Spare hundreds of small trainings a third of their time.

    Each of them collects garbage, which goes through all that torch, transformers and TRL have made
    while they were imported, and asks whether packages are installed by parsing their metadata.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if "accelerate" in sys.modules:
        imports = sys.modules["accelerate.utils.imports"]
        imports._is_package_available = functools.cache(imports._is_package_available)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Folder of a Qwen2 of one layer, 16 wide, random weights, with the miniature's tokenizer."""
    return save_tiny_qwen2(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256)


@pytest.fixture
def make_trainer(tiny_model, tmp_path):
    """`make_trainer(cls, **config)`: a trainer on 16 prompts, 4 rows at once, groups of 4, CPU,
    with the evaluation of the recipes.

    `extras` are arguments of the trainer itself, such as `peft_config`.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer

    from trl_ablate import AblationConfig, AblationTrainer

    def make(
        cls=AblationTrainer,
        config_class=AblationConfig,
        reward=digits,
        extras=None,
        model=None,
        **overrides,
    ):
        arguments = {
            "output_dir": str(tmp_path / "run"),
            **SMALL,
            **({"evaluation": "one_shot"} if config_class is AblationConfig else {}),
            "max_completion_length": 12,
            "max_steps": 3,
            **overrides,
        }
        if "optimizer_batch_size" in overrides:
            arguments.pop("gradient_accumulation_steps")
        model = model or tiny_model
        return cls(
            model=model,
            reward_funcs=reward,
            args=config_class(**arguments),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
            eval_dataset=Dataset.from_dict({"prompt": PROMPTS[:5]}),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            **(extras or {}),
        )

    return make
