"""`AblationTrainer` instead of `GRPOTrainer`: the same training, bit by bit, and up to rounding
with our speed-ups.

Random legal configurations, whose number determines them (`TRL_ABLATE_CONFIGS=500` tests 500 in one
process, and a sixth as many with two), and rewards, data, models and settings that these do not
draw. Evaluation, tools, environments and images have files of their own.
"""

import inspect
import os
import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas
import pytest
import torch
from datasets import Dataset
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser

from tests.contract.alike import (
    MODES,
    ROWS,
    UNEVEN,
    Both,
    Script,
    digits,
    draw_settings,
    refused_alike,
    tokenizer_of,
    train_alike,
    train_both_ways,
    unequal,
    weights,
)
from tests.contract.test_architectures import saved, small_model
from tests.support.two_processes import in_two_processes
from trl_ablate import AblationConfig, AblationTrainer, ConfigurationError
from trl_ablate.config import own_config

CONFIGURATIONS = int(os.environ.get("TRL_ABLATE_CONFIGS", "18"))
ENGINE = "trl.trainer.grpo_trainer.VLLMGeneration"
LONGEST = 14


def unequal_in_turn(prompts, trainer, tool: bool):
    return unequal(prompts, trainer, tool, calls=trainer._step)


def sometimes(completions, **kwargs):
    """Leaves every fourth kind of text ungraded."""
    kinds = [sum(map(ord, text)) % 8 for text in completions]
    return [None if kind in (3, 6) else kind / 7 for kind in kinds]


def drawn(number: int, processes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the trainers of the configuration with this number, and their settings."""
    one = random.Random(number)
    group = one.choice([2, 3, 4])
    rows = one.randint(1, 4) * group * (1 if group % processes == 0 else processes)
    groups = rows // group
    rollouts = one.choice(["engine", "function", "function", "model", "model"])
    sizes = [size for size in range(1, rows + 1) if rows % (size * processes) == 0]
    settings = {
        **draw_settings(one),
        "seed": number,
        "lr_scheduler_type": "constant",
        "max_completion_length": LONGEST,
        "num_generations": group,
        "per_device_train_batch_size": one.choice(sizes),
        "generation_batch_size": rows,
        "max_steps": one.randint(2, 4),
        "epsilon": one.choice([0.2, 0.02]),
        "epsilon_high": one.choice([None, 0.3, 1.01]),
        "delta": one.choice([None, None, 1.1]),
        "use_bias_correction_kl": one.random() < 0.5,
        "pad_to_multiple_of": one.choice([None, None, 8]),
        "adam_epsilon": 1e-4,  # or Adam takes full steps on rounding errors
        "max_grad_norm": one.choice([1.0, 0.0]),
    }
    settings["learning_rate"] = 0.3 if settings["optim"] == "sgd" else 1e-3
    if one.random() < 0.3:
        settings["multi_objective_aggregation"] = "normalize_then_sum"
        settings["scale_rewards"] = "group"  # TRL ignores it here; ours refuses any other value
    rewards = [digits, sometimes][: one.randint(1, 2)]
    if len(rewards) == 2:
        settings["reward_weights"] = one.choice([None, [1.0, 0.5]])
    asked = UNEVEN[: one.randint(groups, 4 * groups)]
    arguments: dict[str, Any] = {
        "reward_funcs": rewards,
        "train_dataset": Dataset.from_dict({"prompt": asked}),
        "eval_dataset": None,
    }
    if one.random() < 1 / 3:
        arguments["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    else:  # with an adapter, TRL looks for the embeddings in the wrong place
        settings["cast_lm_head_to_fp32"] = one.random() < 0.3
    if rollouts == "function":
        arguments["rollout_func"] = partial(unequal_in_turn, tool=one.random() < 0.5)
    if rollouts == "engine":
        low, high = one.choice([(None, 1.5), (0.5, 2.0), (0.9, None)])
        settings |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_importance_sampling_correction": one.random() < 0.5,
            "vllm_importance_sampling_clip_min": low,
            "vllm_importance_sampling_clip_max": high,
        }
    return arguments, settings


def compare(model: str, numbers: Iterable[int], processes: int = 1) -> None:
    """The configurations with these numbers, in this process or as one of two."""
    script = partial(Script, tokenizer_of(model).eos_token_id, LONGEST)
    for number in numbers:
        arguments, settings = drawn(number, processes)
        with TemporaryDirectory() as folder, patch(ENGINE, lambda **_: script()):
            train_both_ways(Both(model, Path(folder), arguments), moves=False, **settings)


@pytest.mark.sample(5)
@pytest.mark.parametrize("number", range(CONFIGURATIONS))
def test_random_configurations(tiny_model, number):
    compare(tiny_model, [number])


@pytest.mark.slow
def test_random_configurations_in_two_processes(tiny_model):
    in_two_processes(compare, tiny_model, range(max(1, CONFIGURATIONS // 6)), 2)


def as_tensors(prompts, trainer):
    rollouts = unequal(prompts, trainer)
    return {**rollouts, "completion_ids": [*map(torch.tensor, rollouts["completion_ids"])]}


UNEQUAL = {"rollout_func": unequal, "train_dataset": Dataset.from_dict({"prompt": UNEVEN[:16]})}
"""Prompts and completions of unequal length, which need padding."""
FEW = {"train_dataset": Dataset.from_list(ROWS[:6])}


def without_padding(model):
    tokenizer = tokenizer_of(model)
    tokenizer.pad_token = None
    return tokenizer


def with_two_ends(folder):
    """Its generation config has an end-of-turn token besides the tokenizer's end of text."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config.eos_token_id = [model.config.eos_token_id, 7]
    return model


def adapted(folder, **where):
    """With an adapter that was put on by hand."""
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_pretrained(folder)
    return get_peft_model(model, LoraConfig(**where))


def with_saved_adapter(folder):
    with TemporaryDirectory() as saved:
        adapted(folder, target_modules=["q_proj", "v_proj"]).save_pretrained(saved)
        model = AutoModelForCausalLM.from_pretrained(folder)
        return PeftModel.from_pretrained(model, saved, is_trainable=True)


def with_token_advantages(kind):
    """A user's own rewards and advantages."""

    class Changed(kind):
        def _calculate_rewards(self, *given):
            return super()._calculate_rewards(*given) ** 2

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            width = output["completion_mask"].size(1)
            return {**output, "advantages": output["advantages"][:, None].expand(-1, width)}

    return Changed


def lora(**settings):
    return UNEQUAL | {"peft_config": LoraConfig(**settings)}


def virtual_tokens(kind):
    adapter = kind(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=8)
    return UNEQUAL | {"model": "llama", "peft_config": adapter}


ON_EXPERTS = partial(
    adapted, target_parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
)
SLOWLY = {"learning_rate": 0.05}
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    "max_position_embeddings": 12,
}
TRAININGS = {
    "sampling": ({}, {"lr_scheduler_type": "cosine", "warmup_steps": 1, "logging_steps": 2,
                      "max_steps": 3, "disable_dropout": True, "temperature": 0.7, "top_k": 10,
                      "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1,
                      "steps_per_generation": 4, "dataloader_num_workers": 2}),
    "beams": ({}, {"generation_kwargs": {"top_k": 50, "num_beams": 2, "length_penalty": -0.1},
                   "include_num_input_tokens_seen": "all", "gradient_checkpointing": True,
                   "torch_empty_cache_steps": 1, "skip_memory_metrics": False}),
    "epochs": (FEW, {"logging_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1,
                     "cache_implementation": "static", "logging_first_step": True}),
    "tensors": (UNEQUAL | {"rollout_func": as_tensors, "tokenizer": without_padding}, {}),
    "two ends": (UNEQUAL | {"load": with_two_ends}, {"mask_truncated_completions": True}),
    "reference": ({}, {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1,
                       "ref_model_mixup_alpha": 0.5, "max_steps": 3}),
    "subclass": (UNEQUAL | {"subclass": with_token_advantages}, {"steps_per_generation": 4}),
    "all-linear": (lora(target_modules="all-linear"), {"gradient_checkpointing": True}),
    "dora": (lora(target_modules=["q_proj", "v_proj"], use_dora=True), {"beta": 0.1}),
    "embeddings": (lora(target_modules=["q_proj"], modules_to_save=["embed_tokens"]), {}),
    "head": (lora(target_modules=["q_proj"], modules_to_save=["lm_head"]), {}),
    "saved adapter": (UNEQUAL | {"load": with_saved_adapter}, {"beta": 0.1, **SLOWLY}),
    "on experts": (UNEQUAL | {"model": "gpt_oss", "load": ON_EXPERTS}, {"beta": 0.1, **SLOWLY}),
    "gpt_oss": (UNEQUAL | {"model": "gpt_oss"}, SLOWLY),
    "gemma2": (UNEQUAL | {"model": "gemma2"}, {"beta": 0.1, **SLOWLY}),
    "gpt2": (UNEQUAL | {"model": "gpt2"}, {"num_iterations": 2, **SLOWLY}),
    "dynamic": (UNEQUAL | {"model": "llama", "shape": DYNAMIC}, {"num_iterations": 2, **SLOWLY}),
    "qwen3_moe": (UNEQUAL | {"model": "qwen3_moe"},
                  {"router_aux_loss_coef": 0.1, "beta": 0.1, **SLOWLY}),
    "prompt tuning": (virtual_tokens(PromptTuningConfig), {"beta": 0.1}),
    "prefix tuning": (virtual_tokens(PrefixTuningConfig), {"beta": 0.1}),
    "bf16": ({}, {"bf16": True, "loss_type": "grpo", "max_steps": 3}),
    "fp32 head": ({}, {"model_init_kwargs": {"dtype": "bfloat16"}, "cast_lm_head_to_fp32": True,
                       "beta": 0.1}),
}  # fmt: skip
ROUNDED = ("bf16", "fp32 head")
"""Speed-ups change more than float32 rounding."""
OF_EXPERTS = "the load-balancing loss of its experts depends on the whole microbatch"
VIRTUAL = "the padding separates the adapter's virtual tokens from the prompt"
PADDED = {
    "gpt2": "this model type was not tested with rows moved to the left",
    "dynamic": "its rotary frequencies follow from the longest row of a forward pass",
    **dict.fromkeys(("on experts", "gpt_oss", "qwen3_moe"), OF_EXPERTS),
    **dict.fromkeys(("prompt tuning", "prefix tuning"), VIRTUAL),
}
"""Why microbatches keep TRL's padding, which trimming would otherwise change."""


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(both, tiny_model, tmp_path, caplog, name):
    arguments, settings = TRAININGS[name]
    if "model" in arguments:
        arguments = {"shape": {}, **arguments}
        small = small_model(arguments["model"], **arguments.pop("shape"))
        arguments["model"] = saved(small, tiny_model, tmp_path / "model")
    train = train_alike if name in ROUNDED else train_both_ways
    ours, stock = train(both(**arguments), **settings)
    assert ours.eos_token_ids == stock.eos_token_ids
    assert ours.processing_class.pad_token == stock.processing_class.pad_token is not None
    assert caplog.text.count("microbatches keep TRL's padding") == (name in PADDED)
    assert PADDED.get(name, "") in caplog.text


def by_step(completions, trainer_state, log_metric, log_extra, **kwargs):
    """Grades every second completion, and logs."""
    log_metric("longest", trainer_state.global_step + max(map(len, completions)))
    log_extra("characters", [len(text) for text in completions])
    grades = [len(set(text)) / (1 + trainer_state.global_step) for text in completions]
    return [grade if place % 2 else None for place, grade in enumerate(grades)]


def ungraded(completions, **kwargs):
    return [None] * len(completions)


async def answers(completions, answer, **kwargs):
    return [float(str(one) in text) for text, one in zip(completions, answer, strict=True)]


def test_several_rewards_and_the_files_of_completions(both):
    """Both write the same files, with the same columns and rows."""
    trainers = train_both_ways(
        both(reward_funcs=[digits, by_step, answers, ungraded]),
        reward_weights=[1.0, 0.3, 2.0, 1.0], log_completions=True,
    )  # fmt: skip
    for step in (1, 2):
        mine, theirs = (
            pandas.read_parquet(f"{one.args.output_dir}/completions/completions_0000{step}.parquet")
            for one in trainers
        )
        assert len(theirs) == 8
        pandas.testing.assert_frame_equal(mine[list(theirs.columns)], theirs)


def test_streams_are_read_as_in_stock(both):
    pair = both(train_dataset=Dataset.from_list(ROWS).to_iterable_dataset(), eval_dataset=None)
    train_both_ways(pair, shuffle_dataset=False, dataloader_num_workers=2)
    refused_alike(
        pair, "require `dispatch_batches=False`", accelerator_config={"dispatch_batches": True}
    )


class HalfBlind(Script):
    """An engine that cannot score the first token of every second completion."""

    def generate(self, prompts, images, num_generations, profiler):
        *found, logprobs, rest = super().generate(prompts, images, num_generations, profiler)
        logprobs = [[[None], *row[1:]] if i % 2 else row for i, row in enumerate(logprobs)]
        return *found, logprobs, rest


@pytest.mark.sample(4)
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_that_the_engine_could_not_score(both, monkeypatch, tiny_model, mode, iterations):
    """They are not corrected and mask no sequence, also if a forward pass is saved."""
    eos = tokenizer_of(tiny_model).eos_token_id
    monkeypatch.setattr(ENGINE, lambda **_: HalfBlind(eos, 8))
    ours, _ = train_both_ways(
        both(),
        use_vllm=True,
        vllm_mode="colocate",
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=1.4,
        off_policy_mask_threshold=1e9,
        num_iterations=iterations,
        max_steps=4,
    )
    assert torch.isfinite(weights(ours)).all()


def test_the_constructor_takes_what_trls_does(tiny_model, tmp_path, monkeypatch):
    """The same names, defaults and positions of parameters; without `args` the config is ours and
    its folder TRL's; a `GRPOConfig` is refused."""
    assert inspect.signature(AblationTrainer) == inspect.signature(GRPOTrainer)
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ConfigurationError, match="args is a GRPOConfig.*AblationConfig"):
        AblationTrainer(tiny_model, digits, config)
    monkeypatch.setattr(AblationConfig, "__post_init__", lambda self: None)
    assert own_config(None, "owner/model").output_dir == "model-GRPO"


def test_trls_parser_reads_the_configuration_beside_its_own(tmp_path):
    parser = TrlParser((ScriptArguments, AblationConfig, ModelConfig))
    words = f"--dataset_name x --output_dir {tmp_path} --use_cpu --bf16 false --baseline none"
    _, config, _ = parser.parse_args_and_config([*words.split(), "--stop", "</answer>"])
    assert (config.baseline, config.stop) == ("none", ["</answer>"])


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ({"reward_funcs": None}, {}, "No reward source provided"),
        ({"rollout_func": lambda prompts, trainer: {}}, {}, "rollout_func must return keys"),
        ({}, {"num_generations": 3}, "divisible"),
    ],
)
def test_what_stock_refuses_is_refused_in_its_words(both, arguments, settings, said):
    refused_alike(both(**arguments), said, **settings)
