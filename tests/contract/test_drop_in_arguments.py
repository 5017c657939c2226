"""The arguments of TRL's own tests of `GRPOTrainer`, for `AblationTrainer` and stock.

Settings, rewards, and arguments that both refuse. Data and bookkeeping are tested in
`test_drop_in_data.py`, models and adapters in `test_drop_in_models.py`.
"""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from tests.contract.alike import (
    ROWS,
    digits,
    logged,
    refused_alike,
    tokenizer_of,
    train_alike,
    train_both_ways,
    weights,
)

SLOW = pytest.mark.slow

CHAT = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


@pytest.mark.parametrize(
    "settings",
    [
        {"per_device_train_batch_size": 3, "num_generations": 3},
        pytest.param({"num_generations": 8}, marks=SLOW),
        {"gradient_accumulation_steps": 3, "steps_per_generation": 4, "num_iterations": 2},
        pytest.param({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, marks=SLOW),
        pytest.param({"scale_rewards": False}, marks=SLOW),
        pytest.param({"scale_rewards": True}, marks=SLOW),
        pytest.param({"pad_to_multiple_of": 8, "beta": 0.1}, marks=SLOW),
        pytest.param(
            {"beta": 0.1, "use_bias_correction_kl": True, "num_iterations": 2}, marks=SLOW
        ),
        {"entropy_coef": 0.1, "top_entropy_quantile": 0.2},
        pytest.param(
            {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 15.0}, marks=SLOW
        ),
        pytest.param(
            {"importance_sampling_level": "sequence", "loss_type": "dapo", "num_iterations": 2},
            marks=SLOW,
        ),
        pytest.param(
            {"top_p": 0.9, "top_k": 10, "min_p": 0.01, "repetition_penalty": 1.1}, marks=SLOW
        ),
        {"generation_kwargs": {"top_k": 50, "num_beams": 2, "length_penalty": -0.1}},
        pytest.param({"cache_implementation": "static"}, marks=SLOW),
        pytest.param({"gradient_checkpointing": True}, marks=SLOW),
        pytest.param({"num_train_epochs": 1, "max_steps": -1}, marks=SLOW),
        pytest.param(
            {"logging_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1}, marks=SLOW
        ),
        pytest.param({"logging_first_step": True, "logging_steps": 10}, marks=SLOW),
        pytest.param({"include_num_input_tokens_seen": "all"}, marks=SLOW),
        pytest.param({"torch_empty_cache_steps": 1, "skip_memory_metrics": False}, marks=SLOW),
    ],
    ids=",".join,
)
def test_settings(both, settings):
    train_both_ways(both(), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        pytest.param({"model_init_kwargs": {"dtype": "bfloat16"}}, marks=SLOW),
        {"model_init_kwargs": {"dtype": "bfloat16"}, "cast_lm_head_to_fp32": True, "beta": 0.1},
        pytest.param({"model_init_kwargs": {"attn_implementation": "eager"}}, marks=SLOW),
    ],
    ids=",".join,
)
def test_precision_and_how_the_model_is_loaded(both, settings):
    ours, stock = train_alike(both(), **settings)
    assert ours.model.dtype == stock.model.dtype
    assert ours.model.lm_head.weight.dtype == stock.model.lm_head.weight.dtype


@SLOW
def test_workers_load_the_data(both):
    train_both_ways(both(), dataloader_num_workers=2)


def test_where_every_completion_is_truncated_nothing_is_learned(both):
    for kind in ("ours", "stock"):
        trainer = getattr(both(), kind)(mask_truncated_completions=True, max_completion_length=3)
        before = weights(trainer).clone()
        trainer.train()
        assert torch.equal(weights(trainer), before)
        assert [row["loss"] for row in logged(trainer)] == [0.0, 0.0]
        assert [row["completions/clipped_ratio"] for row in logged(trainer)] == [1.0, 1.0]


def test_the_reference_follows_the_model_as_in_stock(both):
    ours, stock = train_alike(
        both(), beta=0.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.5
    )
    first = both().ours(beta=0.1).ref_model
    for mine, theirs, before in zip(
        ours.ref_model.parameters(), stock.ref_model.parameters(), first.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, before)


# Rewards


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


def ungraded(completions, **kwargs):
    return [None] * len(completions)


def ones(completions, **kwargs):
    return [1] * len(completions)


def near_the_answer(completions, answer, **kwargs):
    return [float(abs(len(text) - one)) for text, one in zip(completions, answer, strict=True)]


def by_step(completions, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("custom_accuracy", 0.75 + trainer_state.global_step)
    log_extra("first_letters", [text[:5] for text in completions])
    return [len(set(text)) / (1 + trainer_state.global_step) for text in completions]


@pytest.mark.parametrize("data", [pytest.param(ROWS, marks=SLOW), CHAT], ids=["text", "chat"])
def test_a_reward_model_by_its_path(both, judge, data):
    train_both_ways(both(reward_funcs=judge, train_dataset=Dataset.from_list(data)))


@pytest.mark.parametrize(
    ("rewards", "settings"),
    [
        ([digits, ungraded], {}),
        pytest.param([digits, ones], {"reward_weights": [0.7, 0.3]}, marks=SLOW),
        pytest.param(
            [digits, near_the_answer],
            {"multi_objective_aggregation": "normalize_then_sum"},
            marks=SLOW,
        ),
        ([by_step], {"log_completions": True, "log_unique_prompts": True}),
        pytest.param(
            [near_the_answer], {"log_completions": True, "num_completions_to_print": 1}, marks=SLOW
        ),
    ],
    ids=["none", "weights", "column", "state", "printed"],
)
def test_reward_functions(both, rewards, settings):
    train_both_ways(both(reward_funcs=rewards), **settings)


@SLOW
def test_a_function_beside_a_reward_model(both, judge):
    ours, stock = train_both_ways(both(reward_funcs=[digits, judge]))
    assert ours.reward_func_names == stock.reward_func_names == ["digits", "judge"]


def test_reward_tokenizers(both, judge):
    """One tokenizer for one model, a list for several; a list of wrong length is refused."""
    tokenizer = tokenizer_of(judge)
    for arguments in (
        {"reward_funcs": judge, "reward_processing_classes": tokenizer},
        {"reward_funcs": [judge, judge], "reward_processing_classes": [tokenizer, tokenizer]},
    ):
        ours, stock = both(**arguments).ours(), both(**arguments).stock()
        assert ours.reward_processing_classes == stock.reward_processing_classes
    refused_alike(
        both(reward_funcs=[judge, judge], reward_processing_classes=tokenizer), "must match"
    )


@SLOW
def test_constant_rewards_are_logged_with_their_weights(both):
    def zeros(completions, **kwargs):
        return [0.0] * len(completions)

    for kind in ("ours", "stock"):
        trainer = getattr(both(reward_funcs=[ones, zeros]), kind)(reward_weights=[0.7, 0.3])
        trainer.train()
        assert logged(trainer)[0]["reward"] == pytest.approx(0.7)


def test_the_warning_where_nothing_is_graded(both, caplog):
    for kind in ("ours", "stock"):
        caplog.clear()
        with caplog.at_level("WARNING", logger="trl.trainer.grpo_trainer"):
            getattr(both(reward_funcs=ungraded), kind)(max_steps=1).train()
        assert "All reward functions returned None for the following kwargs" in caplog.text


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_the_warning_about_sequence_ratios_in_a_sum_over_tokens(both, caplog, loss_type):
    for kind in ("ours", "stock"):
        caplog.clear()
        with caplog.at_level("WARNING", logger="trl.trainer.grpo_trainer"):
            getattr(both(), kind)(importance_sampling_level="sequence", loss_type=loss_type)
        warned = "weights each sequence by its completion length" in caplog.text
        assert warned == (loss_type == "dapo")


def test_a_wrong_number_of_rewards_is_refused(both):
    refused_alike(
        both(reward_funcs=lambda completions, **kwargs: [1.0]), "returned 1 rewards", training=True
    )


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ({"reward_funcs": None}, {}, "No reward source provided"),
        ({"train_dataset": None}, {}, "`train_dataset` is required"),
        ({"train_dataset": {"train": Dataset.from_list(ROWS)}}, {}, "must be a `Dataset`"),
        ({}, {"reward_weights": [1.0, 2.0]}, "must match number of reward functions"),
        ({}, {"sync_ref_model": True}, "`beta=0.0`"),
        ({}, {"auto_find_batch_size": True}, "full prompt groups"),
        ({}, {"router_aux_loss_coef": 0.1}, "not a Mixture-of-Experts"),
        ({}, {"generation_batch_size": 8, "steps_per_generation": 2}, "at the same time"),
        ({}, {"num_generations": 3}, "divisible"),
        ({}, {"num_generations": 1, "per_device_train_batch_size": 4}, "at least 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stock_refuses_is_refused_in_its_words(both, arguments, settings, said):
    refused_alike(both(**arguments), said, **settings)
