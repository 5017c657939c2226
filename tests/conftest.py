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

# A shell that starts tests in the background lets them ignore Ctrl-C, and so all they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


def pytest_collection_finish():
    """Spare hundreds of small trainings a third of their time.

    Each of them collects garbage, which goes through all that torch, transformers and TRL have made
    while they were imported, and asks whether packages are installed by parsing their metadata.
    """
    gc.collect()
    gc.freeze()
    if "accelerate" in sys.modules:
        imports = sys.modules["accelerate.utils.imports"]
        imports._is_package_available = functools.cache(imports._is_package_available)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Folder of a Qwen2 of two layers, 16 wide, random weights, with the miniature's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from trl_ablate import miniature

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = miniature.tokenizer()
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def letters_reward(completions, **kwargs):
    """A reward that any text has: the share of its characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


@pytest.fixture
def make_trainer(tiny_model, tmp_path):
    """`make_trainer(cls, **config)`: a trainer on 16 prompts, 4 rows at once, groups of 4, CPU.

    `extras` are arguments of the trainer itself, such as `peft_config`.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer

    from trl_ablate import AblationConfig, AblationTrainer

    def make(
        cls=AblationTrainer,
        config_class=AblationConfig,
        reward=letters_reward,
        extras=None,
        model=None,
        **overrides,
    ):
        arguments = {
            "output_dir": str(tmp_path / "run"),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 3,
            "learning_rate": 1e-2,
            "seed": 0,
            **overrides,
        }
        if "optimizer_batch_size" in overrides:
            arguments.pop("gradient_accumulation_steps")
        prompts = [f"User: {a}+{a + 3}=?\nAssistant: <think>" for a in range(11, 27)]
        model = model or tiny_model
        return cls(
            model=model,
            reward_funcs=reward,
            args=config_class(**arguments),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            eval_dataset=Dataset.from_dict({"prompt": prompts[:5]}),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            **(extras or {}),
        )

    return make
