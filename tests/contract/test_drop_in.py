"""`AblationTrainer` instead of `GRPOTrainer`: arguments, settings and rewards of training.

The cases are those of TRL's documentation and of its own tests. Evaluation, data, models and
environments have files of their own.
"""

import inspect

import pandas
import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

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
from trl_ablate import AblationConfig, AblationTrainer, ConfigurationError

SLOW = pytest.mark.slow

CHAT = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def test_the_constructor_takes_what_trls_does(tiny_model, tmp_path):
    """The same names, defaults and positions of parameters."""
    assert inspect.signature(AblationTrainer) == inspect.signature(GRPOTrainer)
    seen = TrainerCallback()
    rows, tokenizer = Dataset.from_list(ROWS), tokenizer_of(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = AblationConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=8
    )
    trainer = AblationTrainer(
        model, [digits], config, rows, {"a": rows}, tokenizer, None, [seen], (optimizer, None)
    )
    assert (trainer.args, trainer.train_dataset, trainer.eval_dataset) == (
        config,
        rows,
        {"a": rows},
    )
    assert trainer.processing_class is tokenizer
    assert seen in trainer.callback_handler.callbacks
    assert trainer.optimizer is optimizer


def test_without_arguments_the_config_is_ours_and_its_folder_trls(tiny_model, monkeypatch):
    made = []
    monkeypatch.setattr(
        GRPOTrainer, "__init__", lambda self, model, rewards, args: made.append(args)
    )
    monkeypatch.setattr(AblationConfig, "__post_init__", lambda self: None)
    with pytest.raises(AttributeError):  # TRL's __init__ did not run
        AblationTrainer(f"owner/{tiny_model.split('/')[-1]}", digits)
    assert type(made[0]) is AblationConfig
    assert made[0].output_dir == f"{tiny_model.split('/')[-1]}-GRPO"


def test_a_grpo_config_is_refused_in_one_sentence(tiny_model, tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ConfigurationError, match="args is a GRPOConfig.*AblationConfig"):
        AblationTrainer(tiny_model, digits, config)


SETTINGS = [
    *(
        {"loss_type": kind}
        for kind in ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "vespo")
    ),
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"importance_sampling_level": "sequence", "loss_type": "dapo", "num_iterations": 2},
    {"loss_type": "grpo", "num_iterations": 2},
    {"delta": 1.5, "epsilon_high": 0.3, "num_iterations": 2},
    {"off_policy_mask_threshold": 0.5, "num_iterations": 2},
    {"beta": 0.1, "use_bias_correction_kl": True, "num_iterations": 2},
    {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
    {"pad_to_multiple_of": 8, "beta": 0.1},
    {"scale_rewards": "batch"},
    {"scale_rewards": False},
    {"scale_rewards": True},
    {"multi_objective_aggregation": "normalize_then_sum", "loss_type": "grpo"},
    {"mask_truncated_completions": True, "max_completion_length": 40},
    {"entropy_coef": 0.1, "top_entropy_quantile": 0.2},
    {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 15.0},
    {"per_device_train_batch_size": 3, "num_generations": 3},
    {"num_generations": 8},
    {"gradient_accumulation_steps": 3, "steps_per_generation": 4, "num_iterations": 2},
    {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    {"steps_per_generation": 4},
    {"shuffle_dataset": False},
    {"dataloader_num_workers": 2},
    {"lr_scheduler_type": "cosine", "warmup_steps": 1},
    {"lr_scheduler_type": "constant"},
    {"disable_dropout": True, "temperature": 0.7, "top_k": 20, "min_p": 0.01},
    {"top_p": 0.9, "top_k": 10, "min_p": 0.01, "repetition_penalty": 1.1},
    {"generation_kwargs": {"top_k": 50, "num_beams": 2, "length_penalty": -0.1}},
    {"generation_kwargs": {"num_beams": 2}, "repetition_penalty": 1.2},
    {"cache_implementation": "static"},
    {"gradient_checkpointing": True},
    {"num_train_epochs": 1, "max_steps": -1},
    {"logging_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1},
    {"logging_first_step": True, "logging_steps": 10},
    {"logging_steps": 2, "max_steps": 3},
    {"include_num_input_tokens_seen": "all"},
    {"torch_empty_cache_steps": 1, "skip_memory_metrics": False},
]


@pytest.mark.sample(14)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: ",".join(map(str, one)))
def test_settings(both, settings):
    train_both_ways(both(), **settings)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_adams_steps(both, loss_type):
    """To the bit, with three steps of the optimizer that takes full steps on rounding errors."""
    train_alike(both(), loss_type=loss_type, max_steps=3)


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


def test_a_stream_of_training_data(both):
    stream = IterableDataset.from_generator(lambda: iter(ROWS))
    train_alike(both(train_dataset=stream, eval_dataset=None))


def test_chat_data_and_a_model_that_is_already_loaded(both, tiny_model):
    def judge(completions, **kwargs):
        return digits([messages[0]["content"] for messages in completions])

    train_alike(
        both(
            load=lambda: AutoModelForCausalLM.from_pretrained(tiny_model),
            train_dataset=Dataset.from_list(CHAT),
            reward_funcs=judge,
        )
    )


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


def lengths(completions, log_metric, log_extra, **kwargs):
    """Grades every second completion, and logs."""
    log_metric("longest", max(map(len, completions)))
    log_extra("characters", [len(text) for text in completions])
    return [len(text) / 10 if i % 2 else None for i, text in enumerate(completions)]


async def answers(completions, answer, **kwargs):
    return [float(str(one) in text) for text, one in zip(completions, answer, strict=True)]


def test_a_reward_model(both, tiny_model):
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    train_alike(both(reward_funcs=[model], reward_processing_classes=[tokenizer_of(tiny_model)]))


@pytest.mark.parametrize("data", [pytest.param(ROWS, marks=SLOW), CHAT], ids=["text", "chat"])
def test_a_reward_model_by_its_path(both, judge, data):
    train_both_ways(both(reward_funcs=judge, train_dataset=Dataset.from_list(data)))


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_several_weighted_rewards_some_none_some_async(both, aggregation):
    ours, _ = train_alike(
        both(reward_funcs=[digits, lengths, answers]),
        reward_weights=[1.0, 0.3, 2.0],
        multi_objective_aggregation=aggregation,
    )
    assert logged(ours)[0]["longest"] > 0


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


# Callbacks and logs


class Seen(TrainerCallback):
    def __init__(self):
        self.events = []

    def on_step_end(self, args, state, control, **kwargs):
        self.events.append(("step", state.global_step))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.events.append(("log", state.global_step))

    def on_save(self, args, state, control, **kwargs):
        self.events.append(("save", state.global_step))


def test_callbacks_are_called_as_in_stock(both):
    events = []
    for kind in ("ours", "stock"):
        seen = Seen()
        trainer = getattr(both(callbacks=[seen]), kind)(save_strategy="steps", save_steps=1)
        trainer.train()
        events.append(seen.events)
    assert events[0] == events[1]
    assert ("save", 2) in events[0]


def test_logged_completions(both):
    """Both write the same files, with the same columns and rows."""
    ours, stock = train_alike(both(reward_funcs=[digits, lengths]), log_completions=True)
    files = []
    for trainer in (ours, stock):
        folder = f"{trainer.args.output_dir}/completions"
        files.append([f"{folder}/completions_0000{step}.parquet" for step in (1, 2)])
    for mine, theirs in zip(*files, strict=True):
        table = pandas.read_parquet(theirs)
        assert len(table) == 8
        pandas.testing.assert_frame_equal(pandas.read_parquet(mine)[list(table.columns)], table)
