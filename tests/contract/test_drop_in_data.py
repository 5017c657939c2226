"""Data sets of all kinds, the order of rows, rollout functions, and methods called directly.

The cases are those of TRL's own tests of `GRPOTrainer`.
"""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDatasetDict
from transformers import AutoTokenizer
from trl import GRPOTrainer

from tests.contract.alike import (
    ROWS,
    check_alike,
    digits,
    logged,
    refused_alike,
    train_both_ways,
    weights,
)
from tests.support.differential import Script
from trl_ablate import AblationConfig, AblationTrainer

SLOW = pytest.mark.slow
MAPPED = Dataset.from_list(ROWS[:3])


def test_a_model_a_reward_and_data_are_enough(tiny_model, tmp_path):
    """The tokenizer is the model's. Without `args`, both fail on a CPU, as it refuses bf16."""
    config = AblationConfig(str(tmp_path), use_cpu=True, bf16=False)
    trainer = AblationTrainer(tiny_model, digits, config, Dataset.from_list(ROWS))
    own = trainer.processing_class
    assert own.get_vocab() == AutoTokenizer.from_pretrained(tiny_model).get_vocab()
    assert (own.padding_side, own.truncation_side) == ("left", "left")


def streamed(rows):
    return rows.to_iterable_dataset()


SETS = {
    "map": MAPPED,
    "stream": streamed(MAPPED),
    "dict": {"a": MAPPED, "b": MAPPED},
    "dict of streams": {"a": streamed(MAPPED), "b": streamed(MAPPED)},
    "DatasetDict": DatasetDict({"a": MAPPED, "b": MAPPED}),
    "IterableDatasetDict": IterableDatasetDict({"a": streamed(MAPPED), "b": streamed(MAPPED)}),
}


@SLOW
@pytest.mark.parametrize("kind", SETS)
def test_sets_given_to_evaluate(both, kind):
    """A trainer without its own set; by default, the numbers equal stock's."""
    pair = both(eval_dataset=None)
    settings = {"per_device_eval_batch_size": 4}
    theirs = pair.stock(**settings).evaluate(eval_dataset=SETS[kind])
    mine = pair.ours(**settings).evaluate(eval_dataset=SETS[kind])
    check_alike(mine, {name: value for name, value in theirs.items() if "preparation" not in name})
    names = {"eval"} if kind in ("map", "stream") else {"eval_a", "eval_b"}
    assert all(f"{name}_loss" in mine for name in names)
    one_shot = pair.one_shot(**settings).evaluate(eval_dataset=SETS[kind])
    assert all(f"{name}_reward" in one_shot for name in names)


@pytest.mark.parametrize("kind", ["stream", "DatasetDict", "IterableDatasetDict"])
def test_sets_given_to_the_constructor(both, kind):
    ours, stock = both(eval_dataset=SETS[kind]).ours(), both(eval_dataset=SETS[kind]).stock()
    assert type(ours.eval_dataset) is type(stock.eval_dataset)
    assert ours.eval_dataset is SETS[kind] or set(ours.eval_dataset) == {"a", "b"}


def test_streams_are_read_as_in_stock(both):
    """With one worker, all rows on every process; mapped data keep their workers."""
    stream = streamed(Dataset.from_list(ROWS))
    pair = both(train_dataset=stream)
    refused_alike(
        pair, "require `dispatch_batches=False`", accelerator_config={"dispatch_batches": True}
    )
    trainer = pair.ours(dataloader_num_workers=2)
    assert trainer.args.dataloader_num_workers == 0
    assert trainer.args.accelerator_config.dispatch_batches is False
    mixed = both(eval_dataset=streamed(MAPPED)).ours(dataloader_num_workers=2)
    assert mixed.get_train_dataloader().num_workers == 2
    assert mixed.get_eval_dataloader().num_workers == 0
    assert mixed.args.dataloader_num_workers == 2
    train_both_ways(both(train_dataset=stream, eval_dataset=None), shuffle_dataset=False)


@pytest.mark.parametrize("shuffle", [False, pytest.param(True, marks=SLOW)])
def test_every_step_is_given_the_rows_that_stock_gives_it(both, shuffle):
    """Also if neither of rollout batch and optimizer step is a multiple of the other."""
    settings = {
        "per_device_train_batch_size": 6,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 3,
        "num_iterations": 2,
        "max_completion_length": 2,
        "shuffle_dataset": shuffle,
        "max_steps": -1,
        "num_train_epochs": 1,
    }
    seen = []
    for kind in ("ours", "stock"):
        trainer, steps = getattr(both(), kind)(**settings), []
        step = trainer.training_step

        def watched(model, inputs, count, step=step, steps=steps):
            steps.append([row["prompt"] for row in inputs])
            return step(model, inputs, count)

        with patch.object(trainer, "training_step", watched):
            trainer.train()
        seen.append(steps)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * 2 * 4  # rollout batches of 6 prompts x iterations x microbatches
    assert seen[0][0] == seen[0][7] != seen[0][8]
    assert len(set(seen[0][0])) == 6


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "loss_type": "grpo"},
            marks=SLOW,
        ),
        pytest.param(
            {"eval_strategy": "epoch", "num_train_epochs": 1, "max_steps": -1}, marks=SLOW
        ),
        {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 1},
    ],
    ids=",".join,
)
def test_evaluation_while_training(both, settings):
    """Stock's evaluation changes the training's random state, and ours does too by default;
    one-shot evaluation does not, and the training is the same as without it."""
    settings |= {"per_device_eval_batch_size": 4}
    ours, stock = both().ours(**settings), None
    ours.train()
    stock = both().stock(**settings)
    stock.train()
    assert torch.equal(weights(ours), weights(stock))
    for mine, theirs in zip(logged(ours), logged(stock), strict=True):
        check_alike(mine, theirs)
    alone = both().stock(**{**settings, "eval_strategy": "no", "eval_on_start": False})
    alone.train()
    one_shot = both().one_shot(**settings)
    one_shot.train()
    assert torch.equal(weights(one_shot), weights(alone))
    evaluated = [row["step"] for row in logged(one_shot) if "eval_reward" in row]
    assert evaluated == [row["step"] for row in logged(stock) if "eval_reward" in row]


# Rollout functions


def test_what_a_rollout_function_is_called_with(both):
    calls = []

    def rollout(prompts, trainer):
        calls.append((prompts, trainer))
        script = Script(trainer.processing_class.eos_token_id, 8, tool=True)
        return script.rollout_func(prompts, trainer)

    ours, stock = train_both_ways(both(rollout_func=rollout))
    assert [trainer is ours for _, trainer in calls] == [True] * 2 + [False] * 4
    assert [prompts for prompts, _ in calls[:2]] == [prompts for prompts, _ in calls[2:4]]


def test_a_rollout_function_that_leaves_something_out_is_refused(both):
    def rollout(prompts, trainer):
        return {"prompt_ids": [[1]] * len(prompts), "completion_ids": [[2]] * len(prompts)}

    refused_alike(both(rollout_func=rollout), "rollout_func must return keys", training=True)


class Engine(Script):
    """An engine that cannot score the first token of every second completion."""

    unscored = True
    synced: list[int] = []

    def generate(self, prompts, images, num_generations, profiler):
        prompt_ids, completion_ids, logprobs, rest = super().generate(
            prompts, images, num_generations, profiler
        )
        if self.unscored:
            logprobs = [[[None], *row[1:]] if i % 2 else row for i, row in enumerate(logprobs)]
        return prompt_ids, completion_ids, logprobs, rest

    def sync_weights(self):
        self.synced.append(1)


@pytest.fixture
def engine(monkeypatch, tiny_model):
    """A script instead of vLLM, which starts over in every trainer."""
    eos = AutoTokenizer.from_pretrained(tiny_model).eos_token_id
    monkeypatch.setattr(
        "trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: Engine(eos, 8, tool=False)
    )
    monkeypatch.setattr(Engine, "synced", [])
    return Engine


IN_PLACE = {"use_vllm": True, "vllm_mode": "colocate"}


@pytest.mark.parametrize(
    "mode",
    [
        "token_truncate",
        pytest.param("token_mask", marks=SLOW),
        pytest.param("sequence_truncate", marks=SLOW),
        "sequence_mask",
    ],
)
@pytest.mark.parametrize("settings", [{}, {"num_iterations": 2}], ids=["on-policy", "off-policy"])
def test_tokens_that_the_engine_could_not_score(both, engine, mode, settings):
    """They are not corrected and mask no sequence, also if a forward pass is saved."""
    settings = {**IN_PLACE, **settings, "vllm_importance_sampling_mode": mode}
    settings |= {"off_policy_mask_threshold": 1e9, "vllm_importance_sampling_clip_max": 1.4}
    ours, _ = train_both_ways(both(), **settings)
    assert torch.isfinite(weights(ours)).all()


def test_a_rollout_function_beside_an_engine_finds_its_weights_synced(both, engine):
    counts = []

    def rollout(prompts, trainer):
        counts.append(len(engine.synced))
        return Script(trainer.processing_class.eos_token_id, 8, False).rollout_func(
            prompts, trainer
        )

    for kind in ("ours", "stock"):
        engine.synced.clear()
        getattr(both(rollout_func=rollout), kind)(**IN_PLACE).train()
    assert counts == [1, 2, 1, 2]


# Methods called directly


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
def test_the_mask_of_high_entropies(threshold):
    """Called on the class, with only an accelerator instead of a trainer."""
    alone = SimpleNamespace(
        accelerator=SimpleNamespace(
            gather=lambda values: values, pad_across_processes=lambda values, **_: values
        )
    )
    entropies = torch.arange(12).view(2, 6) / 10
    for mask in (torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]), torch.zeros(2, 6).long()):
        mine, theirs = (
            one.get_high_entropy_mask(alone, entropies, mask, threshold)
            for one in (AblationTrainer, GRPOTrainer)
        )
        assert torch.equal(mine, theirs)
        assert bool(mine.any()) == bool(mask.any())


@pytest.mark.parametrize("name", ["get_off_policy_mask", "get_gamma_weights"])
def test_static_formulas_are_stocks(name):
    assert getattr(AblationTrainer, name) is getattr(GRPOTrainer, name)


def batch(trainer) -> dict[str, torch.Tensor]:
    """Two rows, written by hand, with padding after both completions."""
    generator = torch.Generator().manual_seed(3)
    prompts, completions = (
        torch.randint(5, 200, (2, width), generator=generator) for width in (3, 6)
    )
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    with torch.no_grad():
        logps = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([prompts, completions], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            6,
        )[0]
    return {**inputs, "old_per_token_logps": logps + 0.05, "ref_per_token_logps": logps + 0.05}


@pytest.mark.parametrize(("level", "beta"), [("sequence", 0.1), ("token", 0.0)])
@pytest.mark.parametrize("shipped", [False, True])
def test_the_loss_of_a_batch_made_by_hand(both, level, beta, shipped):
    """It equals stock's loss and does not depend on values at padding."""
    settings = {"loss_type": "luspo", "beta": beta, "importance_sampling_level": level}
    speed = {"trim_microbatches": shipped, "regroup_by_length": shipped}
    losses = []
    for trainer in (both().stock(**settings), both().ours(**settings, **speed)):
        trainer.model.eval()
        inputs = batch(trainer)
        padding = inputs["completion_mask"] == 0
        changed = {
            name: inputs[name] + padding.float()
            for name in ("old_per_token_logps", "ref_per_token_logps")
        }
        losses += [
            trainer._compute_loss(trainer.model, one).item()
            for one in (inputs, {**inputs, **changed})
        ]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    assert losses[0] != 0


def test_entropies_have_a_gradient_where_they_are_rewarded(both):
    ids = torch.arange(5, 13)[None]
    for coefficient in (0.1, 0.0):
        mine, theirs = (
            trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), logits_to_keep=4, compute_entropy=True
            )[1]
            for trainer in (
                both().ours(entropy_coef=coefficient),
                both().stock(entropy_coef=coefficient),
            )
        )
        assert torch.equal(mine, theirs)
        assert mine.requires_grad == theirs.requires_grad
        assert mine.requires_grad or not coefficient
