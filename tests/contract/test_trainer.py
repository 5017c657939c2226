"""Every switch of `AblationTrainer` has an effect, and its steps and logs are counted right."""

import time
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from tests.contract.alike import weights
from tests.support.trainers import digits
from trl_ablate import AblationConfig
from trl_ablate.advantages import compute_advantages, weighted_reward
from trl_ablate.run.directory import RunDirectory
from trl_ablate.settings import choices
from trl_ablate.switches import Baseline, LengthNorm, Scale, Surrogate
from trl_ablate.trainer.rollouts import describe
from trl_ablate.training.callbacks import BestCheckpoint

VARIED = {"stop": ["1", "2", "a", "e"], "max_completion_length": 40}
"""Makes the random model end its completions at different lengths."""


NO_CLIP = {"surrogate": "no_clip", "num_iterations": 3}
WITH_KL = {"beta": 0.5, "num_iterations": 2}
NO_SCALE = {"scale_rewards": "none", "baseline": "none"}


def trained(trainer):
    trainer.train()
    return weights(trainer)


WHOLE = {"overlong_share": 1.0}
TIED = {"max_completion_length": 2, "num_generations": 2}
"""Some groups have equal rewards."""


def lengths(completions, **kwargs):
    return [float(len(text)) for text in completions]


TWO_REWARDS = {"reward": [digits, lengths]}


def grades(values):
    """A reward function that returns `values` in turn, again and again."""

    def reward(completions, **kwargs):
        return [values[i % len(values)] for i in range(len(completions))]

    return reward


TWO_STEPS = {"max_steps": 2, "epsilon": 0.01, "optim": "sgd", "learning_rate": 1.0}
_PLAIN: dict[str, torch.Tensor] = {}
"""The weights of trainings that several switches are compared with, by their settings."""


@pytest.fixture
def trained_plainly(make_trainer):
    def plainly(settings):
        key = repr(settings)
        if key not in _PLAIN:
            _PLAIN[key] = trained(make_trainer(**TWO_STEPS, **settings))
        return _PLAIN[key]

    return plainly


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "plain"),
    [
        ({"baseline": "none"}, {}),
        ({"baseline": "leave_one_out"}, {}),
        ({"baseline": "batch_mean"}, {}),
        ({"scale_rewards": "batch"}, {}),
        ({"scale_rewards": "none"}, {}),
        ({"baseline": "group_then_batch", **VARIED}, VARIED),
        ({"baseline": "group_token_mean", **VARIED}, VARIED),
        ({"baseline": "best_of_others"}, {}),
        ({"baseline": "best_of_others", "best_of": 2}, {"baseline": "best_of_others"}),
        ({"baseline": "half"}, {}),
        ({"scale_rewards": "group_mean"}, {}),
        ({"scale_rewards": "advantage_std"}, {"scale_rewards": "batch"}),
        ({"baseline": "token_mean", **VARIED}, {"baseline": "batch_mean", **VARIED}),
        ({"scale_rewards": "token_std", **VARIED}, {"scale_rewards": "advantage_std", **VARIED}),
        ({"length_norm": "nonzero", **TIED}, {"length_norm": "token", **TIED}),
        ({"advantage_eps": 0.5}, {}),
        ({"positive_weight": 0.5}, {}),
        ({"negative_weight": 0.0}, {}),
        ({"advantage_clip": 0.5}, {}),
        ({"reward_noise": 0.5, "scale_rewards": "none", "baseline": "none"}, NO_SCALE),
        ({"placebo": "random", **NO_SCALE}, NO_SCALE),
        ({"placebo": "length", **NO_SCALE, **VARIED}, {**NO_SCALE, **VARIED}),
        ({"placebo": "constant", **NO_SCALE}, NO_SCALE),
        ({"group_filter": "drop", **TIED}, TIED),
        ({"group_filter": "resample", **TIED}, TIED),
        ({"hard_group_exponent": 1.0}, {}),
        ({"outcome_gate": "digits", **TWO_REWARDS}, TWO_REWARDS),
        ({"overlong_penalty": 1.0, **WHOLE, **VARIED}, VARIED),
        (
            {"overlong_penalty": 1.0, **WHOLE, **VARIED},
            {"overlong_penalty": 1.0, "overlong_share": 0.5, **VARIED},
        ),
        ({"correct_truncation": True, "top_p": 0.5}, {"top_p": 0.5}),
        ({"length_norm": "mean"}, {"length_norm": "token"}),
        ({"length_norm": "constant"}, {"length_norm": "mean"}),
        ({"length_norm": "constant", "length_norm_constant": 3.0}, {"length_norm": "constant"}),
        ({"length_norm": "microbatch", **VARIED}, {"length_norm": "constant", **VARIED}),
        ({"surrogate": "no_clip", "num_iterations": 3}, {"num_iterations": 3}),
        ({"surrogate": "reinforce", "num_iterations": 3}, {"num_iterations": 3}),
        ({"surrogate": "geometric", "num_iterations": 3}, {"num_iterations": 3}),
        ({"surrogate": "probability", "num_iterations": 3, "epsilon_high": 1e-6}, NO_CLIP),
        (
            {"surrogate": "one_sided", "num_iterations": 3},
            {"surrogate": "reinforce", "num_iterations": 3},
        ),
        ({"length_norm": "prompt", **VARIED}, {"length_norm": "token", **VARIED}),
        ({"covariance_kl": 1.0, "num_iterations": 3}, {"num_iterations": 3}),
        (
            {"covariance_kl": 1.0, "covariance_share": 0.5, "num_iterations": 3},
            {"covariance_kl": 1.0, "num_iterations": 3},
        ),
        ({"kl_estimator": "k1", **WITH_KL}, WITH_KL),
        ({"kl_estimator": "k2", **WITH_KL}, WITH_KL),
        ({"kl_in": "reward", **WITH_KL}, WITH_KL),
        ({"rollout_staleness": 1}, {}),
        ({"sampler_dtype": "float8_e4m3fn"}, {}),
        (
            {"sampler_dtype": "float8_e4m3fn", "sampler_gap_limit": 1e-4},
            {"sampler_dtype": "float8_e4m3fn"},
        ),
        ({"optimizer_batch_size": 4, "generation_batch_size": 8}, {}),
        (VARIED, {"max_completion_length": 40}),
        ({**VARIED, "min_tokens": 9}, VARIED),
    ],
    ids=lambda settings: (
        ",".join(f"{k}={v}" for k, v in settings.items() if k != "reward") or "default"
    ),
)
def test_ignoring_a_switch_would_show(make_trainer, trained_plainly, switch, plain):
    switched = trained(make_trainer(**TWO_STEPS, **switch))
    assert not torch.equal(switched, trained_plainly(plain))


SWITCHES = {
    "baseline": choices(Baseline),
    "scale_rewards": choices(Scale),
    "surrogate": choices(Surrogate),
    "length_norm": choices(LengthNorm),
}


@pytest.mark.parametrize(("one", "other"), combinations(SWITCHES, 2))
def test_every_two_switches_go_together(tmp_path, one, other):
    for values in product(SWITCHES[one], SWITCHES[other]):
        chosen = dict(zip((one, other), values, strict=True))
        config = AblationConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **chosen)
        assert [getattr(config, name) for name in chosen] == list(values)


@pytest.mark.parametrize("baseline", ["leave_one_out", "batch_mean"])
def test_advantages_reach_the_loss_and_the_log(make_trainer, baseline):
    trainer = make_trainer(
        reward=grades([1.0, 0.0, 0.0, None, 1.0, 1.0, 0.0, 1.0]),
        baseline=baseline,
        scale_rewards="none",
        generation_batch_size=8,
    )
    trainer.model.train()
    inputs = [trainer.train_dataset[i // 4] for i in range(8)]
    output = trainer._generate_and_score_completions(inputs)
    nan = float("nan")
    expected = compute_advantages(
        torch.tensor([1, 0, 0, nan, 1, 1, 0, 1]), 4, baseline=baseline, scale="none"
    )
    torch.testing.assert_close(output["advantages"], expected)
    assert list(trainer._logs["advantages"]) == pytest.approx(expected.tolist())


def test_rewards_are_weighted_before_they_become_advantages():
    nan = float("nan")
    rewards = torch.tensor([[1.0, 1.0], [0.0, nan], [nan, nan]])
    got = weighted_reward(rewards, torch.tensor([1.0, 2.0]))
    assert got[:2].tolist() == [3.0, 0.0]
    assert got[2].isnan()


@pytest.mark.parametrize(
    ("epochs", "train_batch", "steps"),
    [(1, 8, 2), (2, 16, 2), (4, 4, 16)],
)
def test_off_policy_arithmetic(make_trainer, epochs, train_batch, steps):
    """e epochs with train batch b take e x 16 / b optimizer steps on a rollout batch of 16."""
    rollouts = []

    def counting(completions, **kwargs):
        rollouts.append(len(completions))
        return [float(len(text)) for text in completions]

    trainer = make_trainer(
        reward=counting,
        generation_batch_size=16,
        num_iterations=epochs,
        optimizer_batch_size=train_batch,
        max_steps=-1,
        grpo_steps=2,
    )
    trainer.train()
    assert trainer.state.global_step == 2 * steps
    assert rollouts == [16, 16]


class EvaluationsSeen(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen.append(metrics)


def with_eval_sets(make_trainer, **settings):
    trainer = make_trainer(num_generations_eval=1, **settings)
    halves = trainer.eval_dataset, trainer.train_dataset.select(range(8, 12))
    trainer.eval_dataset = {"": halves[0], "other": halves[1]}
    return trainer


def test_one_evaluation_of_several_sets_is_one_row_and_one_call(make_trainer):
    alone = make_trainer(num_generations_eval=1).evaluate()
    seen = EvaluationsSeen()
    trainer = with_eval_sets(make_trainer, extras={"callbacks": [seen]})
    metrics = trainer.evaluate()
    assert seen.seen == [metrics]
    (row,) = trainer.state.log_history
    assert row.items() >= metrics.items()
    assert metrics["eval_reward"] == alone["eval_reward"]
    assert set(metrics) == set(alone) | {n.replace("eval_", "eval_other_") for n in alone}
    assert metrics["eval_other_reward"] != metrics["eval_reward"]


def test_a_named_set_decides_which_checkpoint_is_best(make_trainer, tmp_path):
    """Its rewards are 0.1, 0.3, 0.2, while those of the main set rise: the second is kept."""
    others = iter([0.1, 0.3, 0.2])

    def reward(completions, prompts, **_):
        value = next(others) if "19+" in prompts[0] else float(len(seen.seen))
        return [value] * len(prompts)

    run, seen = RunDirectory(tmp_path / "kept"), EvaluationsSeen()
    run.path.mkdir(parents=True, exist_ok=True)
    best = BestCheckpoint(run, "eval_other_reward")
    trainer = with_eval_sets(make_trainer, reward=reward, extras={"callbacks": [best, seen]})
    best.attach(trainer)
    for step in range(3):
        trainer.state.global_step = step
        trainer.evaluate()
    assert [row["eval_reward"] for row in seen.seen] == [0.0, 1.0, 2.0]
    assert run.best() == {"metric": "eval_other_reward", "value": pytest.approx(0.3), "step": 1}


def test_a_stop_string_ends_a_completion_and_stays_in_it(make_trainer):
    trainer = make_trainer(stop=["1"], min_tokens=2, max_completion_length=60)
    trainer.model.train()
    generated = trainer._generate([trainer.train_dataset[i // 8]["prompt"] for i in range(16)])
    ids, texts = generated[1], generated[3]
    assert any("1" in text for text in texts)
    for text, tokens in zip(texts, ids, strict=True):
        if "1" in text:
            assert text.index("1") == len(text) - 1
            assert trainer.stop.ended(tokens)
            assert tokens[-1] != trainer._tokenizer.pad_token_id
    complete = sum("1" in text for text in texts) / len(texts)
    assert trainer._metrics["train"]["completions/clipped_ratio"][-1] <= 1 - complete


def test_completions_ended_by_a_stop_string_are_not_masked_as_truncated(make_trainer):
    trainer = make_trainer(
        stop=["1"],
        max_completion_length=40,
        mask_truncated_completions=True,
        num_generations=8,
        generation_batch_size=8,
    )
    trainer.model.train()
    output = trainer._generate_and_score_completions([trainer.train_dataset[0]] * 8)
    ended = torch.tensor([trainer.stop.ended(ids) for ids in trainer._completion_ids])
    kept = output["completion_mask"].sum(1) > 0
    assert torch.equal(kept, ended)
    assert 0 < ended.sum() < 8
    assert output["num_items_in_batch"] == output["completion_mask"].sum()
    assert trainer.mask_truncated_completions


def test_the_phases_of_a_step_add_up_to_it(make_trainer):
    def slow(completions, **_):
        time.sleep(0.05)
        return [float(len(text)) for text in completions]

    trainer = make_trainer(
        reward=slow, num_iterations=2, max_steps=4, eval_on_start=True, eval_strategy="steps"
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    for row in rows:
        parts = [row[f"time/{name}"] for name in ("rollout", "reward", "train")]
        assert sum(parts) == pytest.approx(row["time/step"])
        assert row["memory/peak_after_train"] > 0
    fresh, reused = rows[0::2], rows[1::2]  # two epochs over each rollout batch
    assert all(0.05 <= row["time/reward"] < row["time/step"] for row in fresh)
    assert all(row["memory/peak_after_rollout"] > 0 for row in fresh)
    assert all(row["time/rollout"] == row["time/reward"] == 0 for row in reused)
    assert not any(key.startswith("time/") for key in trainer._metrics["eval"])


def test_memory_is_not_followed_when_it_is_not_wanted(make_trainer):
    trainer = make_trainer(log_memory=False, max_steps=1)
    trainer.train()
    assert not [key for key in trainer.state.log_history[0] if key.startswith("memory/")]


def test_completions_of_special_tokens_alone_are_counted(make_trainer):
    trainer = make_trainer()
    trainer.model.train()
    special, said = trainer.processing_class.all_special_ids, [100, 101]
    describe(
        trainer._setting(),
        trainer.stop,
        trainer._tokenizer,
        [[special[0]], special, [], [special[0], *said]],
        None,
    )
    assert trainer._metrics["train"]["completions/only_special"] == [0.75]


@pytest.mark.parametrize("on_each_node", [False, True])
def test_of_two_nodes_one_seals_what_they_share(make_trainer, monkeypatch, on_each_node):
    """Tested as the first process of the second node."""
    trainer = make_trainer(max_steps=1, save_on_each_node=on_each_node)
    trainer.train()
    monkeypatch.setattr(type(trainer.args), "process_index", 1)
    monkeypatch.setattr(type(trainer.args), "local_process_index", 0)
    trainer._save_checkpoint(trainer.model, None)
    checkpoint = Path(trainer.args.output_dir) / "checkpoint-1"
    assert (checkpoint / "sealed.json").exists() is on_each_node
    assert (checkpoint / "carried_1.pt").exists()


def test_the_card_of_a_run_names_a_base_that_is_a_folder(make_trainer, tiny_model):
    trainer = make_trainer(report_to="none")
    trainer.create_model_card(model_name="run")
    card = (Path(trainer.args.output_dir) / "README.md").read_text()
    assert "None" not in card
    assert f"`{'/'.join(Path(tiny_model).parts[-2:])}`" in card
    assert f'model="{trainer.args.output_dir}"' in card
