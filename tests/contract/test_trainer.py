"""The switches reach the advantages; steps, phases, stop strings and checkpoints of a training."""

import math
import time
from itertools import combinations, product
from pathlib import Path

import pytest
import torch

from tests.contract.formulas import generated
from trl_ablate import AblationConfig
from trl_ablate.advantages import compute_advantages, signed_and_clipped
from trl_ablate.settings import choices
from trl_ablate.switches import Baseline, LengthNorm, Scale, Surrogate
from trl_ablate.trainer.rollouts import describe, truncation_metrics

VARIED = {"stop": ["1", "2", "a", "e"], "max_completion_length": 40}
"""Makes the random model end its completions at different lengths."""


SWITCHES_OF_ADVANTAGES = [
    *({"baseline": baseline} for baseline in choices(Baseline)),
    *({"scale_rewards": scale, "baseline": "half"} for scale in choices(Scale)),
    {"baseline": "best_of_others", "best_of": 2},
    {"advantage_eps": 0.5},
    {"positive_weight": 0.5, "negative_weight": 0.25, "advantage_clip": 0.4},
]


DEFAULTS = {
    "baseline": "group_mean", "scale_rewards": "group", "advantage_eps": 1e-4, "best_of": None,
    "positive_weight": 1.0, "negative_weight": 1.0, "advantage_clip": None,
}  # fmt: skip
REWARDS = [0.9, 0.0, 0.2, None, 1.0, 0.7, 0.0, 1.0]


@pytest.mark.parametrize(
    "switches", SWITCHES_OF_ADVANTAGES, ids=lambda one: ",".join(map(str, one.values()))
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


def test_completions_of_special_tokens_alone_are_counted(make_trainer):
    trainer = make_trainer()
    trainer.model.train()
    special, said = trainer.processing_class.all_special_ids, [100, 101]
    completions = [[special[0]], special, [], [special[0], *said]]
    describe(trainer._setting(), trainer.stop, trainer._tokenizer, completions, None)
    assert trainer._metrics["train"]["completions/only_special"] == [0.75]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_stop_string_of_an_earlier_turn_is_no_end(make_trainer, mode):
    """Four tokens of the policy, two of a tool, and what the policy wrote after it. An EOS is an
    end, whoever wrote it."""
    trainer = make_trainer(stop=["1"])
    trainer.model.train(mode == "train")
    encode = trainer.processing_class.encode
    for name in truncation_metrics(torch.zeros(1), torch.ones(1).bool()):
        trainer._metrics[mode][name] = [0.0]
    completions = [encode(f"232155{last}") for last in ("22", "21", "")]
    masks = [[1] * 4 + [0] * 2 + [1] * (len(ids) - 6) for ids in completions]
    completions.append([*completions[0], trainer.processing_class.eos_token_id])
    masks.append([1] * 4 + [0] * 5)
    setting, tokenizer = trainer._setting(), trainer.processing_class
    found = describe(setting, trainer.stop, tokenizer, completions, masks)
    assert found.truncated == [True, False, True, False]
    assert trainer._metrics[mode]["completions/clipped_ratio"] == [0.5]


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
