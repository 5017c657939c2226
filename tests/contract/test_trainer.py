"""The switches reach the advantages; steps, phases, stop strings and checkpoints of a training."""

import math
import time
from contextlib import nullcontext
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from tests.contract.formulas import generated
from trl_ablate import AblationConfig, ConfigurationError
from trl_ablate.advantages import compute_advantages, signed_and_clipped
from trl_ablate.run.checkpoints import step_of
from trl_ablate.schedule import evaluations
from trl_ablate.settings import choices
from trl_ablate.switches import Baseline, LengthNorm, Scale, Surrogate
from trl_ablate.trainer.rollouts import describe, truncation_metrics

VARIED = {"stop": ["1", "2", "a", "e"], "max_completion_length": 40}
"""Makes the random model end its completions at different lengths."""

DEFAULTS = {
    "baseline": "group_mean", "scale_rewards": "group", "advantage_eps": 1e-4, "best_of": None,
    "positive_weight": 1.0, "negative_weight": 1.0, "advantage_clip": None,
}  # fmt: skip
REWARDS = [0.9, 0.0, 0.2, None, 1.0, 0.7, 0.0, 1.0]


@pytest.mark.parametrize(
    "switches",
    [
        *({"baseline": baseline} for baseline in choices(Baseline)),
        *({"scale_rewards": scale, "baseline": "half"} for scale in choices(Scale)),
        {"baseline": "best_of_others", "best_of": 2},
        {"advantage_eps": 0.5},
        {"positive_weight": 0.5, "negative_weight": 0.25, "advantage_clip": 0.4},
    ],
    ids=lambda one: ",".join(map(str, one.values())),
)
def test_advantages_reach_the_loss_and_the_log(make_trainer, switches):
    """With each switch, and none of them is ignored."""
    trainer = make_trainer(
        reward=lambda completions, **kwargs: REWARDS * (len(completions) // 8),
        generation_batch_size=8, **VARIED, **switches,
    )  # fmt: skip
    output = generated(trainer)
    rewards = torch.tensor([math.nan if one is None else one for one in REWARDS])

    def advantages(baseline, scale_rewards, advantage_eps, best_of, advantage_clip, **weights):
        tokens = torch.tensor(trainer.described.lengths)
        found = compute_advantages(rewards, 4, baseline=baseline, scale=scale_rewards,
                                   eps=advantage_eps, tokens_N=tokens, best_of=best_of)  # fmt: skip
        return signed_and_clipped(found, clip=advantage_clip, **weights)

    expected = advantages(**DEFAULTS | switches)
    torch.testing.assert_close(output["advantages"], expected)
    assert list(trainer._logs["advantages"]) == pytest.approx(expected.tolist())
    is_default = switches == {"baseline": "group_mean"}
    assert torch.allclose(expected, advantages(**DEFAULTS)) == is_default


SWITCHES = {
    "baseline": choices(Baseline),
    "scale_rewards": choices(Scale),
    "surrogate": choices(Surrogate),
    "length_norm": choices(LengthNorm),
}


@pytest.mark.parametrize("names", [*combinations(SWITCHES, 2)], ids=",".join)
def test_every_two_switches_go_together(tmp_path, names):
    for values in product(*(SWITCHES[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        config = AblationConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **chosen)
        assert {name: getattr(config, name) for name in names} == chosen


def test_completions_ended_by_a_stop_string_are_not_masked_as_truncated(make_trainer):
    trainer = make_trainer(stop=["1"], max_completion_length=40, mask_truncated_completions=True,
                           num_generations=8, generation_batch_size=8)  # fmt: skip
    output = generated(trainer)
    ended = torch.tensor([trainer.stop.ended(ids) for ids in trainer._completion_ids])
    kept = output["completion_mask"].sum(1) > 0
    assert torch.equal(kept, ended)
    assert 0 < ended.sum() < 8
    assert output["num_items_in_batch"] == output["completion_mask"].sum()
    assert trainer.mask_truncated_completions


def test_the_phases_of_a_step_add_up_to_it(make_trainer):
    def slow(completions, **_):
        time.sleep(0.02)
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
    assert all(0.02 <= row["time/reward"] < row["time/step"] for row in fresh)
    assert all(row["memory/peak_after_rollout"] > 0 for row in fresh)
    assert all(row["time/rollout"] == row["time/reward"] == 0 for row in reused)
    assert not any(key.startswith("time/") for key in trainer._metrics["eval"])
    plain = make_trainer(log_memory=False, max_steps=1)
    plain.train()
    assert not [key for key in plain.state.log_history[0] if key.startswith("memory/")]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_stop_string_of_an_earlier_turn_is_no_end(make_trainer, mode):
    """Four tokens of the policy, two of a tool, and what the policy wrote after it. An EOS is an
    end, whoever wrote it. Of eight completions, three are of special tokens alone."""
    trainer = make_trainer(stop=["1"])
    trainer.model.train(mode == "train")
    metrics, tokenizer = trainer._metrics[mode], trainer.processing_class
    for name in truncation_metrics(torch.zeros(1), torch.ones(1).bool()):
        metrics[name] = [0.0]
    completions = [tokenizer.encode(f"232155{last}") for last in ("22", "21", "")]
    masks = [[1] * 4 + [0] * 2 + [1] * (len(ids) - 6) for ids in completions]
    completions.append([*completions[0], tokenizer.eos_token_id])
    masks.append([1] * 4 + [0] * 5)
    special = tokenizer.all_special_ids
    completions += [[special[0]], special, [], [special[0], 100, 101]]
    masks += [[1] * len(ids) for ids in completions[4:]]
    found = describe(trainer._setting(), trainer.stop, tokenizer, completions, masks)
    assert found.truncated[:4] == [True, False, True, False]
    assert found.lengths[:4] == [6, 6, 4, 4]
    assert metrics["completions/clipped_ratio"] == [sum(found.truncated) / 8]
    assert metrics.get("completions/only_special") == ([3 / 8] if mode == "train" else None)


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


# When it evaluates and saves

SHORT = {"max_completion_length": 4, "eval_strategy": "steps", "num_generations_eval": 1}
SHARES = {"generation_batch_size": 8, "max_steps": -1}
FOUR_STEPS = {"num_iterations": 2, "optimizer_batch_size": 4}
"""Optimizer steps on a rollout batch of eight."""


class AtTheFirst(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            control.should_save = control.should_evaluate = True


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("settings", "every", "expected"),
    [
        # a fraction is a share of the GRPO steps, off-policy as on-policy
        ({**SHARES, "grpo_steps": 5}, 0.4, [2, 4, 5]),
        ({**SHARES, "grpo_steps": 3, **FOUR_STEPS}, 0.1, [4, 8, 12]),
        # 2 GRPO steps per optimizer step, and 3/4: 6 optimizer steps are 4.5, and 11 are 8.25
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4, "max_steps": 5}, 4,
         [2, 4, 5]),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 3, "max_steps": 12}, 4,
         [6, 11, 12]),
        # another callback may ask for more; an evaluation may have a delay
        ({"max_steps": 3, "extras": {"callbacks": [AtTheFirst()]}}, 2, [1, 2, 3]),
        ({"max_steps": 4, "eval_delay": 3}, 1, [3, 4]),
    ],
)  # fmt: skip
def test_steps_of_evaluations_and_checkpoints(make_trainer, settings, every, expected):
    trainer = make_trainer(
        **SHORT, eval_steps=every, save_strategy="steps", save_steps=every, save_only_model=True,
        **settings,
    )  # fmt: skip
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    saved = [step_of(folder) for folder in Path(trainer.args.output_dir).glob("checkpoint-*")]
    assert evaluated == expected
    assert sorted(saved) == ([1, 2, 3, 4] if "eval_delay" in settings else expected)
    args = trainer.args
    of = args.max_steps, args.grpo_steps_per_optimizer_step, every, args.eval_delay
    assert evaluations(*of) == len(expected) - ("extras" in settings)


def test_a_resumed_training_saves_and_logs_by_its_own_settings(make_trainer):
    settings = {"max_steps": 4, "save_strategy": "steps"}
    make_trainer(**settings, save_steps=2, logging_steps=2).train()
    trainer = make_trainer(**settings, save_steps=1, logging_steps=1)
    folder = Path(trainer.args.output_dir)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert (folder / "checkpoint-3").exists()
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [2, 3, 4]


@pytest.mark.parametrize(("steps", "refused"), [(4, True), (2, False)])
def test_an_epoch_that_cuts_a_step_off_is_refused(make_trainer, steps, refused):
    """A rollout batch is of one question of three, and a step takes two batches."""
    trainer = make_trainer(steps_per_generation=1, grpo_steps=steps, max_steps=-1)
    trainer.train_dataset = trainer.train_dataset.select(range(3))
    said = "the 3 rollout batches in an epoch do not fill optimizer steps of 2"
    with pytest.raises(ConfigurationError, match=said) if refused else nullcontext():
        trainer.train()


def test_an_epoch_that_cuts_a_step_off_is_warned_of_without_grpo_steps(make_trainer, caplog):
    trainer = make_trainer(steps_per_generation=1, max_steps=-1, num_train_epochs=2)
    trainer.train_dataset = trainer.train_dataset.select(range(3))
    trainer.train()
    assert "the last of each epoch would train on fewer than it counts" in caplog.text


MINE = ("checkpoint-0.bak", "checkpoint-9.tmp", "checkpoint-x", "my_checkpoint-1")
"""transformers takes the first two, and a last one of them for the newest checkpoint."""


@pytest.mark.parametrize("best", [False, True])
def test_folders_of_the_user_are_kept_and_not_counted(make_trainer, tmp_path, best):
    for name in MINE:
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "model.safetensors").write_text("mine")
    by = {"metric_for_best_model": "eval_reward"} if best else {}
    trainer = make_trainer(
        save_strategy="steps", save_steps=1, save_total_limit=1 if best else 2, eval_steps=1,
        load_best_model_at_end=best, **by, **SHORT,
    )  # fmt: skip
    trainer.train()
    kept = {trainer.state.best_model_checkpoint[-12:]} if best else {"checkpoint-2", "checkpoint-3"}
    assert {path.name for path in (tmp_path / "run").glob("*checkpoint*")} == {*MINE, *kept}
    for name in MINE:
        assert (tmp_path / "run" / name / "model.safetensors").read_text() == "mine"
