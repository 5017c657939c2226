"""Our evaluation instead of TRL's: the same names and numbers, and the same accepted arguments."""

import pandas
import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import TrainerCallback

from tests.contract.alike import (
    ROWS,
    digits,
    evaluate_alike,
    logged,
    of_a_loss,
    train_alike,
    unequal,
    weights,
)
from tests.support.rows import without_times
from trl_ablate import ConfigurationError
from trl_ablate.estimates import metric_names


def with_turns(prompts, trainer):
    rollouts = unequal(prompts, trainer, tool=True)
    return {**rollouts, "turns": [len(ids) % 3 for ids in rollouts["completion_ids"]]}


def turns_taken(completions, turns, log_metric, **kwargs):
    """Grades by an extra field of the rollout; completions with no turn stay ungraded."""
    log_metric("turns", sum(turns) / len(turns))
    log_metric("shown_the_answer", float("answer" in kwargs))
    return [float(taken) if taken else None for taken in turns]


SCRIPTED = {"rollout_func": with_turns, "reward_funcs": [digits, turns_taken]}


@pytest.mark.parametrize(
    "settings",
    [
        {"num_generations_eval": 1, "beta": 0.1, "remove_unused_columns": True},
        {"num_generations_eval": 4, "scale_rewards": "batch"},
        {"reward_weights": [0.5, 2.0], "multi_objective_aggregation": "normalize_then_sum"},
    ],
    ids=",".join,
)
def test_all_that_stock_logs_without_a_loss_has_the_same_value(both, settings):
    """Also of five questions in batches of 2, 2 and 1; stock averages over batches, whatever their
    size."""
    pair = both(**SCRIPTED)
    found = evaluate_alike(pair, **settings)
    assert found["eval_shown_the_answer"] == ("remove_unused_columns" not in settings)
    wrong = pair.stock(**settings, per_device_eval_batch_size=4).evaluate()
    same = wrong["eval_completions/mean_length"] == pytest.approx(found["eval_mean_length"])
    assert same == (settings.get("num_generations_eval") == 4)  # batches of one question


def test_every_metric_is_one_that_a_recipe_may_name(both):
    metrics = both().one_shot().evaluate()
    of_rewards = {name for name in metrics if name.startswith("eval_rewards/")}
    unmade = {"eval_format_reward", "eval_answer_reward"}
    assert set(metrics) - of_rewards - {"time/eval", "epoch"} == set(metric_names(2)) - unmade


WATCHED = {"eval_strategy": "steps", "eval_steps": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {**WATCHED, "eval_on_start": True, "loss_type": "grpo", "per_device_eval_batch_size": 2},
        {"eval_strategy": "epoch", "num_train_epochs": 1, "max_steps": -1},
    ],
    ids=",".join,
)
def test_by_default_evaluation_is_stocks_to_the_bit(both, settings):
    """The same loss and numbers as stock, and the same use of the training's random state. In one
    shot it uses none, and the training is the same as without it."""
    pair = both(train_dataset=Dataset.from_list(ROWS[:4]))
    ours, stock = train_alike(pair, **settings)
    evaluated = [row for row in logged(stock) if "eval_loss" in row]
    assert sum(map(of_a_loss, evaluated[0])) == 7
    assert not [row for row in logged(ours) if "eval_loss" in row and "mean_ratio" in row]
    alone = pair.stock(**{**settings, "eval_strategy": "no", "eval_on_start": False})
    alone.train()
    one_shot = pair.one_shot(**settings)
    one_shot.train()
    assert torch.equal(weights(one_shot), weights(alone))
    steps = [row["step"] for row in logged(one_shot) if "eval_reward" in row]
    assert steps == [row["step"] for row in evaluated]


def test_a_stream_is_evaluated_as_a_set(both):
    """In one shot; by default as stock, also given to a trainer without a set."""
    rows = Dataset.from_list(ROWS[:5])
    found = evaluate_alike(both(**SCRIPTED, eval_dataset=None), rows.to_iterable_dataset())
    whole = both(**SCRIPTED).one_shot().evaluate(rows)
    assert without_times(found) == pytest.approx(without_times(whole), abs=1e-6)


def test_sets_by_name(both):
    """transformers' metric names; one set of a dict can be evaluated alone, with its prefix. All
    sets together are one row and one call of the callbacks."""
    halves = {"a": Dataset.from_list(ROWS[:3]), "b": Dataset.from_list(ROWS[3:8])}
    seen = []
    callback = TrainerCallback()
    callback.on_evaluate = lambda *_, metrics, **__: seen.append(metrics)
    trainer = both(**SCRIPTED, eval_dataset=halves, callbacks=[callback]).one_shot()
    alone = {name: trainer.evaluate(half)["eval_reward"] for name, half in halves.items()}
    assert alone["a"] != alone["b"]
    every = trainer.evaluate()
    assert len(trainer.state.log_history) == len(seen) == 3 and seen[-1] == every
    assert trainer.state.log_history[-1].items() >= every.items()
    assert {name: every[f"eval_{name}_reward"] for name in halves} == alone
    assert "eval_reward" not in every and "eval_a_runtime" in every
    assert trainer.evaluate("b")["eval_reward"] == alone["b"]
    assert trainer.evaluate({"c": halves["a"]})["eval_c_reward"] == alone["a"]
    assert trainer.evaluate(halves["a"], metric_key_prefix="test")["test_reward"] == alone["a"]
    with pytest.raises(ConfigurationError, match="no evaluation set 'd'.*has: a, b"):
        trainer.evaluate("d")


def test_rewards_of_one_name_are_told_apart(both):
    functions = [lambda completions, **given: digits(completions, **given),
                 lambda completions, **given: [len(one) / 100 for one in completions]]  # fmt: skip
    trainer = both(reward_funcs=functions).one_shot(reward_weights=[1.0, 10.0])
    assert trainer.reward_func_names == ["<lambda>", "<lambda>_2"]
    found = trainer.evaluate()
    first, second = (found[f"eval_rewards/{name}/mean"] for name in trainer.reward_func_names)
    assert second > 0 and found["eval_reward"] == pytest.approx(first + 10 * second)


NOTHING, SOME = Dataset.from_dict({"prompt": []}), Dataset.from_list(ROWS[:3])
BEST = {**WATCHED, "save_strategy": "best"}
KEPT = {**WATCHED, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("sets", "settings", "said"),
    [
        ({"a": NOTHING}, WATCHED, "'a' is empty"),
        ({"": SOME, "b": SOME}, {**WATCHED, "evaluation": "trl"},
         "under the same names.*remove eval_sets .b."),  # stock logs all of them as `eval_reward`
        ({"a": SOME}, BEST, "'eval_reward', but every .*'eval_a_reward'"),
        (SOME, {**KEPT, "metric_for_best_model": "eval_loss"}, "'one_shot' computes no loss"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_before_the_training(both, sets, settings, said):
    with pytest.raises(ConfigurationError, match=said):
        both(eval_dataset=sets).one_shot(**settings)


def test_an_empty_set_is_not_replaced_by_the_default_one(both):
    trainer, stream = both().one_shot(), IterableDataset.from_generator(lambda: iter(()))
    for empty in (NOTHING, stream, {}, {"a": NOTHING}):
        with pytest.raises(ConfigurationError, match="is empty; give one with questions"):
            trainer.evaluate(empty)
    assert not trainer.state.log_history
    with pytest.raises(ConfigurationError, match="there is no evaluation set; pass"):
        both(eval_dataset=None).one_shot().evaluate()


def test_what_is_best_by_default(both):
    """Without a loss the reward; with one, as in stock, the loss. A named set can decide."""
    kept = both().ours(**KEPT)
    assert (kept.args.metric_for_best_model, kept.args.greater_is_better) == ("loss", False)
    named = both(eval_dataset={"a": SOME}).one_shot(**BEST, best_metric="eval_a_reward")
    assert named.args.greater_is_better


def test_the_best_model_is_loaded_at_the_end_and_a_plateau_is_one_of_the_reward(both):
    """Three rollout batches, each followed by evaluation and checkpoint; the second is best, so
    that the learning rate is halved once, after the third."""
    course = iter((0.1, 0.7, 0.3))

    def reward(completions, **kwargs):
        training = len(completions) == 8
        return digits(completions) if training else [next(course)] * len(completions)

    trainer = both(reward_funcs=reward).one_shot(
        **KEPT,
        max_steps=6,
        num_iterations=2,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0, "factor": 0.5},
    )
    trainer.train()
    assert trainer.state.best_metric == pytest.approx(0.7)
    best = f"{trainer.args.output_dir}/checkpoint-4"
    assert trainer.state.best_model_checkpoint == best
    saved = type(trainer.model).from_pretrained(best)
    held = dict(trainer.model.named_parameters())
    assert all(torch.equal(held[name], value) for name, value in saved.named_parameters())
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / 2)


def test_the_completion_log_shows_the_evaluation_and_training_keeps_its_own(both):
    trainer = both(reward_funcs=[digits]).one_shot(**WATCHED, log_completions=True)
    trainer.train()
    shown = pandas.read_parquet(f"{trainer.args.output_dir}/completions/completions_00001.parquet")
    assert len(shown) == 10
    assert set(shown["prompt"]) == {row["prompt"] for row in ROWS[:5]}
    assert len(trainer.latest_rollouts()) == 8
    before = trainer.latest_rollouts()
    trainer.evaluate()
    assert trainer.latest_rollouts() == before
