"""`AblationTrainer` instead of `GRPOTrainer`: the same training, bit by bit, and up to rounding
with our speed-ups.

Here are the settings, rewards, data and models that the random configurations of
`test_differential` do not draw. Evaluation, tools, environments and images have files of their own.
"""

import inspect

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
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser

from tests.contract.alike import (
    MODES,
    ROWS,
    SGD,
    SHIPPED,
    UNEVEN,
    Script,
    digits,
    refused_alike,
    tokenizer_of,
    train_alike,
    train_both_ways,
    unequal,
    weights,
)
from tests.contract.test_architectures import saved, small_model
from trl_ablate import AblationConfig, AblationTrainer, ConfigurationError

CHAT = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def test_the_constructor_takes_what_trls_does(tiny_model, tmp_path, monkeypatch):
    """The same names, defaults and positions of parameters; without `args` the config is ours and
    its folder TRL's; a `GRPOConfig` is refused."""
    assert inspect.signature(AblationTrainer) == inspect.signature(GRPOTrainer)
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ConfigurationError, match="args is a GRPOConfig.*AblationConfig"):
        AblationTrainer(tiny_model, digits, config)
    made = []
    monkeypatch.setattr(
        GRPOTrainer, "__init__", lambda self, model, rewards, args: made.append(args)
    )
    monkeypatch.setattr(AblationConfig, "__post_init__", lambda self: None)
    with pytest.raises(AttributeError):  # TRL's __init__ did not run
        AblationTrainer(f"owner/{tiny_model.split('/')[-1]}", digits)
    assert type(made[0]) is AblationConfig
    assert made[0].output_dir == f"{tiny_model.split('/')[-1]}-GRPO"


def test_trls_parser_reads_the_configuration_beside_its_own(tmp_path):
    words = f"--dataset_name x --output_dir {tmp_path} --baseline none --scale_rewards none"
    parser = TrlParser((ScriptArguments, AblationConfig, ModelConfig))
    more = ["--use_cpu", "--bf16", "false", "--stop", "</answer>"]
    _, config, _ = parser.parse_args_and_config([*words.split(), *more])
    assert (config.baseline, config.scale_rewards) == ("none", "none")
    assert config.stop == ["</answer>"]


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ({"reward_funcs": None}, {}, "No reward source provided"),
        ({"reward_funcs": lambda completions, **kwargs: [1.0]}, {}, "returned 1 rewards"),
        ({"rollout_func": lambda prompts, trainer: {}}, {}, "rollout_func must return keys"),
        ({"train_dataset": None}, {}, "`train_dataset` is required"),
        ({}, {"reward_weights": [1.0, 2.0]}, "must match number of reward functions"),
        ({}, {"sync_ref_model": True}, "`beta=0.0`"),
        ({}, {"auto_find_batch_size": True}, "full prompt groups"),
        ({}, {"num_generations": 3}, "divisible"),
        ({}, {"num_generations": 1, "per_device_train_batch_size": 4}, "at least 2"),
        ({"peft_config": LoraConfig(target_modules=["lm_head"], ensure_weight_tying=True)}, {},
         "lm_head"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_stock_refuses_is_refused_in_its_words(both, arguments, settings, said):
    refused_alike(both(**arguments), said, **settings)


# Each case is a training. Rewards


def ungraded(completions, **kwargs):
    return [None] * len(completions)


def by_step(completions, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("custom_accuracy", 0.75 + trainer_state.global_step)
    log_extra("first_letters", [text[:5] for text in completions])
    return [len(set(text)) / (1 + trainer_state.global_step) for text in completions]


def lengths(completions, log_metric, log_extra, **kwargs):
    """Grades every second completion, and logs."""
    log_metric("longest", max(map(len, completions)))
    log_extra("characters", [len(text) for text in completions])
    return [len(text) / 10 if i % 2 else None for i, text in enumerate(completions)]


async def answers(completions, answer, **kwargs):
    return [float(str(one) in text) for text, one in zip(completions, answer, strict=True)]


# Rollouts, tokenizers, models


def as_tensors(prompts, trainer):
    rollouts = unequal(prompts, trainer)
    return {**rollouts, "completion_ids": [*map(torch.tensor, rollouts["completion_ids"])]}


UNEQUAL = {"rollout_func": unequal, "train_dataset": Dataset.from_dict({"prompt": UNEVEN[:16]})}
"""Prompts and completions of unequal length, which need padding."""


def without_padding(model):
    tokenizer = tokenizer_of(model)
    tokenizer.pad_token = None
    return tokenizer


def with_two_ends(folder):
    """Its generation config has an end-of-turn token besides the tokenizer's end of text."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config.eos_token_id = [model.config.eos_token_id, 7]
    return model


def adapted(**settings):
    return UNEQUAL | {"peft_config": LoraConfig(**settings)}


TRAININGS = {
    "schedule": ({}, {"lr_scheduler_type": "cosine", "warmup_steps": 1, "logging_steps": 2,
                      "max_steps": 3, "disable_dropout": True, "temperature": 0.7, "top_k": 20}),
    "sampling": ({}, {"top_p": 0.9, "top_k": 10, "min_p": 0.01, "repetition_penalty": 1.1,
                      "steps_per_generation": 4, "dataloader_num_workers": 2}),
    "beams": ({}, {"generation_kwargs": {"top_k": 50, "num_beams": 2, "length_penalty": -0.1},
                   "include_num_input_tokens_seen": "all", "gradient_checkpointing": True,
                   "torch_empty_cache_steps": 1, "skip_memory_metrics": False}),
    "epochs": ({}, {"logging_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1,
                    "cache_implementation": "static", "logging_first_step": True}),
    "ungraded": ({"reward_funcs": [digits, ungraded]}, {}),
    "of a step": ({"reward_funcs": [by_step]}, {"log_completions": True,
                                                "log_unique_prompts": True}),
    "tensors": ({"rollout_func": as_tensors}, {}),
    "no padding token": (UNEQUAL | {"tokenizer": without_padding}, {}),
    "two ends": (UNEQUAL | {"load": with_two_ends}, {"mask_truncated_completions": True}),
    "all-linear": (adapted(target_modules="all-linear"), {"gradient_checkpointing": True}),
    "dora": (adapted(target_modules=["q_proj", "v_proj"], use_dora=True), {"beta": 0.1}),
    "embeddings": (adapted(target_modules=["q_proj"], modules_to_save=["embed_tokens"]), {}),
    "head": (adapted(target_modules=["q_proj"], modules_to_save=["lm_head"]), {}),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(both, name):
    arguments, settings = TRAININGS[name]
    ours, stock = train_both_ways(both(**arguments), **settings)
    assert ours.eos_token_ids == stock.eos_token_ids
    assert (7 in ours.eos_token_ids) == (name == "two ends")
    assert ours.processing_class.pad_token == stock.processing_class.pad_token is not None


def test_several_rewards_and_the_files_of_completions(both):
    """Both write the same files, with the same columns and rows."""
    trainers = train_both_ways(
        both(reward_funcs=[digits, lengths, answers]),
        reward_weights=[1.0, 0.3, 2.0], log_completions=True,
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


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True, "loss_type": "grpo", "max_steps": 3},
        {"model_init_kwargs": {"dtype": "bfloat16"}},
        {"model_init_kwargs": {"attn_implementation": "eager"}},
        {"model_init_kwargs": {"dtype": "bfloat16"}, "cast_lm_head_to_fp32": True, "beta": 0.1},
    ],
    ids=",".join,
)
def test_precision_and_how_the_model_is_loaded(both, settings):
    ours, stock = train_alike(both(), **settings)
    assert ours.model.dtype == stock.model.dtype
    assert ours.model.lm_head.weight.dtype == stock.model.lm_head.weight.dtype


def test_the_reference_follows_the_model_as_in_stock(both):
    ours, stock = train_alike(
        both(), beta=0.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.5
    )
    assert torch.equal(weights(ours, "ref_model"), weights(stock, "ref_model"))
    first = weights(both().ours(beta=0.1), "ref_model")
    assert not torch.equal(weights(ours, "ref_model"), first)


def test_rewards_of_one_name_are_told_apart(both):
    functions = [lambda completions, **given: digits(completions, **given),
                 lambda completions, **given: [len(one) / 100 for one in completions]]  # fmt: skip
    trainer = both(reward_funcs=functions).one_shot(reward_weights=[1.0, 10.0], max_steps=1)
    assert trainer.reward_func_names == ["<lambda>", "<lambda>_2"]
    trainer.train()
    found = trainer.evaluate()
    first, second = (found[f"eval_rewards/{name}/mean"] for name in trainer.reward_func_names)
    assert second > 0 and found["eval_reward"] == pytest.approx(first + 10 * second)


def test_a_subclass_may_change_rewards_and_give_advantages_to_tokens(both):
    def changed(kind):
        class Changed(kind):
            def _calculate_rewards(self, *given):
                return super()._calculate_rewards(*given) ** 2

            def _generate_and_score_completions(self, inputs):
                output = super()._generate_and_score_completions(inputs)
                width = output["completion_mask"].size(1)
                return {**output, "advantages": output["advantages"][:, None].expand(-1, width)}

        return Changed

    pair, settings = both(rollout_func=unequal), {**SGD, "steps_per_generation": 4}
    ours = pair._build(changed(AblationTrainer), AblationConfig, {**SHIPPED, **settings})
    ours.train()
    stock = pair._build(changed(GRPOTrainer), GRPOConfig, settings)
    before = weights(stock).clone()
    stock.train()
    torch.testing.assert_close(weights(ours), weights(stock), atol=1e-5, rtol=0)
    plain = both(rollout_func=unequal).stock(**settings)
    plain.train()
    assert all((weights(stock) - one).abs().max() > 1e-4 for one in (weights(plain), before))


@pytest.fixture
def judge(tiny_model, tmp_path):
    """Folder of a reward model with its own tokenizer and its own padding token."""
    torch.manual_seed(1)
    tokenizer = tokenizer_of(tiny_model)
    tokenizer.padding_side = "right"
    tokenizer.add_special_tokens({"pad_token": "<|nothing|>"})
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    return str(tmp_path / "judge")


@pytest.mark.sample(1)
@pytest.mark.parametrize("data", [CHAT, ROWS], ids=["chat", "text"])
def test_reward_models(both, judge, data):
    """By the path, beside a function of text, and loaded with a tokenizer."""
    rows = Dataset.from_list(data)
    by_path = {"reward_funcs": [digits, judge] if data is ROWS else judge}
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    loaded = {"reward_funcs": [model], "reward_processing_classes": [tokenizer_of(judge)]}
    for arguments in (by_path, loaded):
        ours, stock = train_alike(both(train_dataset=rows, **arguments))
        assert ours.reward_func_names == stock.reward_func_names


class Engine(Script):
    """An engine that cannot score the first token of every second completion."""

    def generate(self, prompts, images, num_generations, profiler):
        *found, logprobs, rest = super().generate(prompts, images, num_generations, profiler)
        logprobs = [[[None], *row[1:]] if i % 2 else row for i, row in enumerate(logprobs)]
        return *found, logprobs, rest


@pytest.mark.sample(2)
@pytest.mark.parametrize("settings", [{}, {"num_iterations": 2}], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_that_the_engine_could_not_score(both, monkeypatch, tiny_model, mode, settings):
    """They are not corrected and mask no sequence, also if a forward pass is saved."""
    eos = tokenizer_of(tiny_model).eos_token_id
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: Engine(eos, 8))
    settings = {**settings, "use_vllm": True, "vllm_mode": "colocate"}
    settings |= {"off_policy_mask_threshold": 1e9, "vllm_importance_sampling_clip_max": 1.4}
    ours, _ = train_both_ways(both(), **settings, vllm_importance_sampling_mode=mode)
    assert torch.isfinite(weights(ours)).all()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("qwen3_moe", {"router_aux_loss_coef": 0.1, "beta": 0.1}),
        ("gpt_oss", {}),
        ("gemma2", {"beta": 0.1}),
        ("gpt2", {"num_iterations": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_architectures(both, tiny_model, tmp_path, model_type, settings):
    folder = saved(small_model(model_type), tiny_model, tmp_path / "model")
    train_both_ways(both(**UNEQUAL, model=folder), **settings, learning_rate=0.05)


@pytest.mark.sample(1)
@pytest.mark.parametrize("origin", ["saved", "by hand", "experts"])
def test_a_model_that_has_an_adapter(both, tiny_model, tmp_path, origin):
    """Loaded with the model, or put on it by hand, also on the parameters of experts."""
    folder, adapter = tiny_model, LoraConfig(target_modules=["q_proj", "v_proj"])
    if origin == "experts":
        folder = saved(small_model("gpt_oss"), tiny_model, tmp_path / "model")
        experts = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
        adapter = LoraConfig(target_parameters=experts)

    def put_on(_):
        torch.manual_seed(4)
        return get_peft_model(AutoModelForCausalLM.from_pretrained(folder), adapter)

    def load(_):
        model = AutoModelForCausalLM.from_pretrained(folder)
        return PeftModel.from_pretrained(model, str(tmp_path / "adapter"), is_trainable=True)

    put_on(folder).save_pretrained(tmp_path / "adapter")
    pair = both(**UNEQUAL, load=load if origin == "saved" else put_on)
    ours, _ = train_both_ways(pair, beta=0.1, learning_rate=0.05)
    assert "ref" in ours.model.peft_config


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_virtual_tokens(both, tiny_model, tmp_path, kind, caplog):
    """Padding separates them from the prompt, so its width changes the result."""
    folder = saved(small_model("llama"), tiny_model, tmp_path / "model")
    adapter = kind(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=8)
    train_both_ways(both(**UNEQUAL, model=folder, peft_config=adapter), beta=0.1)
    assert "keep TRL's padding: the padding separates the adapter's virtual tokens" in caplog.text
