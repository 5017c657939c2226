"""`AblationTrainer` instead of `GRPOTrainer`: the documented features of training.

Evaluation is tested in `test_drop_in_evaluation.py`, environments and tools in
`test_drop_in_worlds.py`.
"""

import inspect

import pandas
import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model
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
    tokenizer_of,
    train_alike,
)
from trl_ablate import AblationConfig, AblationTrainer, ConfigurationError

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


def lengths(completions, log_metric, log_extra, **kwargs):
    """Grades every second completion, and logs."""
    log_metric("longest", max(map(len, completions)))
    log_extra("characters", [len(text) for text in completions])
    return [len(text) / 10 if i % 2 else None for i, text in enumerate(completions)]


async def answers(completions, answer, **kwargs):
    return [float(str(one) in text) for text, one in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_several_weighted_rewards_some_none_some_async(both, aggregation):
    ours, _ = train_alike(
        both(reward_funcs=[digits, lengths, answers]),
        reward_weights=[1.0, 0.3, 2.0],
        multi_objective_aggregation=aggregation,
    )
    assert logged(ours)[0]["longest"] > 0


def test_a_reward_model(both, tiny_model):
    torch.manual_seed(1)
    judge = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    train_alike(both(reward_funcs=[judge], reward_processing_classes=[tokenizer_of(tiny_model)]))


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


def lora(**settings):
    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **settings)


@pytest.mark.parametrize(
    ("peft_config", "settings"),
    [
        (lora(), {"num_iterations": 2}),
        (lora(use_dora=True), {}),
        (lora(modules_to_save=["embed_tokens"]), {"gradient_checkpointing": True}),
    ],
    ids=["off-policy", "dora", "modules_to_save"],
)
def test_adapters(both, peft_config, settings):
    train_alike(both(peft_config=peft_config), **settings)


def test_an_adapter_that_is_already_there(tiny_model, tmp_path, both):
    torch.manual_seed(2)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), lora())
    adapted.save_pretrained(tmp_path / "adapter")

    def load():
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        return PeftModel.from_pretrained(base, str(tmp_path / "adapter"), is_trainable=True)

    train_alike(both(load=load), beta=0.1)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "settings",
    [
        {"lr_scheduler_type": "cosine", "warmup_steps": 1},
        {"lr_scheduler_type": "constant"},
        {"mask_truncated_completions": True, "max_completion_length": 40},
        {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
        {"delta": 1.5, "epsilon_high": 0.3, "num_iterations": 2},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "vespo"},
        {"off_policy_mask_threshold": 0.5, "num_iterations": 2},
        {"steps_per_generation": 4},
        {"shuffle_dataset": False},
        {"use_adaptive_entropy": True, "entropy_coef": 0.01},
        {"disable_dropout": True, "temperature": 0.7, "top_k": 20, "min_p": 0.01},
        {"generation_kwargs": {"num_beams": 2}, "repetition_penalty": 1.2},
        {"logging_steps": 2, "max_steps": 3},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_settings(both, settings):
    train_alike(both(), **settings)


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
