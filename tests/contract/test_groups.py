"""Groups without variance, control rewards, penalties and the outcome gate, in the trainer."""

import math

import pytest
import torch
from transformers import AutoTokenizer, Qwen2MoeConfig, Qwen2MoeForCausalLM

from tests.contract.alike import weights
from tests.contract.formulas import (
    BETA,
    amid_a_step,
    assert_losses_are,
    away_from_reference,
    generated,
    k3,
    logits_of,
    logps_of,
    nearby,
    scored,
)
from tests.support.tiny_models import tiny_config
from trl_ablate import AblationTrainer, ConfigurationError
from trl_ablate.losses import kl_to_reference
from trl_ablate.trainer.batching import weigh_microbatches
from trl_ablate.trainer.resampling import fill

ENDS = {"generation_batch_size": 8, "stop": ["1", "2"]}
"""Two groups, whose completions end at different lengths."""


def by_prompt(completions, prompts, **kwargs):
    """Alternating rewards; 1 for all completions of the prompts 11 to 19."""
    return [1.0 if "User: 1" in prompt else float(i % 2) for i, prompt in enumerate(prompts)]


def in_part(completions, log_extra, **kwargs):
    """As tasks of reasoning-gym: a part of the reward for a wrong answer; every other is right."""
    marks = [float(i % 2) for i in range(len(completions))]
    log_extra("answer_reward", marks)
    return [max(0.1, mark) for mark in marks]


def ones(completions, **kwargs):
    return [1.0] * len(completions)


def outcome(completions, **kwargs):
    return [1.0, 1.0, 0.0, 0.0] * (len(completions) // 4)


def style(completions, **kwargs):
    return [2.0, 0.0, 0.0, None] * (len(completions) // 4)


# Groups that are left out

UNGRADED = {"reward", "reward_std", "rewards/first_only/mean", "rewards/first_only/std"}
"""TRL logs no value for these without a graded completion."""
NONZERO = {"group_filter": "none", "length_norm": "nonzero", "loss_type": "dapo"}


@pytest.mark.parametrize(
    ("settings", "later", "generated"),
    [
        ({"group_filter": "drop"}, 1.0, 8),
        ({"group_filter": "drop"}, None, 8),
        ({"group_filter": "resample"}, 1.0, 24),
        (NONZERO, None, 8),
    ],
    ids=str,
)
def test_a_step_without_groups_is_skipped_and_counted(
    make_trainer, caplog, settings, later, generated
):
    """After one with groups: momentum and weight decay would move the weights; nothing is NaN."""
    seen = []

    def first_only(completions, **kwargs):
        seen.append(weights(trainer))
        return [float(i % 2) if len(seen) == 1 else later for i in range(len(completions))]

    trainer = make_trainer(reward=first_only, max_resample_rounds=2, beta=0.1, weight_decay=0.1,
                           **{"loss_type": "grpo", **settings})  # fmt: skip
    trainer.train()
    start, moved, *others = [*seen, weights(trainer)]
    assert not torch.equal(moved, start)
    assert all(torch.equal(one, moved) for one in others)
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert [row["rollouts/skipped_steps"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert all(math.isfinite(row[name] or 0.0) for name in row.keys() - UNGRADED)
    for row in rows[1:]:
        assert row["grad_norm"] == row["loss"] == row["rollouts/used"] == 0
        assert row["rollouts/generated"] == generated
    never_filled = "2 of 2 groups have no reward variance after 2 rounds" in caplog.text
    assert never_filled is (settings["group_filter"] == "resample")


def test_a_step_without_groups_still_balances_experts(make_trainer, tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = Qwen2MoeConfig(
        **tiny_config(tokenizer).to_diff_dict() | {"model_type": "qwen2_moe"}, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2MoeForCausalLM(config).save_pretrained(tmp_path / "experts")
    tokenizer.save_pretrained(tmp_path / "experts")
    trainer = make_trainer(
        model=str(tmp_path / "experts"), reward=ones, group_filter="drop", max_steps=1,
        router_aux_loss_coef=0.5,
    )  # fmt: skip
    before = weights(trainer)
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0
    assert not torch.equal(weights(trainer), before)


@pytest.mark.parametrize(("longest", "level"), [(12, "sequence"), (1, "token")])
def test_counts_of_dropped_groups_and_weights_of_microbatches(make_trainer, longest, level):
    """Of four microbatches, those without a completion that is kept are not counted."""
    trainer = make_trainer(
        reward=by_prompt, group_filter="drop", loss_type="bnpo", generation_batch_size=16,
        gradient_accumulation_steps=4, shuffle_dataset=False, max_steps=4, learning_rate=0.0,
        beta=0.1, max_completion_length=longest, importance_sampling_level=level,
    )  # fmt: skip
    seen, compute_loss = [], trainer._compute_loss
    trainer._compute_loss = lambda model, part: (seen.append(part), compute_loss(model, part))[1]
    trainer.train()
    generated, shares = 0, set()
    for step, row in enumerate(trainer.state.log_history[:-1]):
        generated += 16 * row["completions/mean_length"]
        assert row["rollouts/generated_tokens"] == generated
        share = row["frac_reward_zero_std"]  # TRL's
        assert row["rollouts/used"] == 16 * (1 - share)
        assert row["rollouts/dropped"] == 16 * share
        assert row["groups/passed/4"] == share and row["groups/passed/2"] == 1 - share
        whole = row["rollouts/used_tokens"] + row["rollouts/dropped_tokens"]
        assert whole == 16 * row["completions/mean_length"]
        shares.add(share)
        assert row["entropy"] is None if share == 1 else 5 < row["entropy"] < 6  # never part of 0
        assert row["kl"] == (None if share == 1 else pytest.approx(0, abs=1e-6))
        assert (row["clip_ratio/high_max"] is None) == (share == 1)
        parts = seen[4 * step : 4 * step + 4]
        filled = sum(bool(one["completion_mask"].any()) for one in parts)
        factors = {one["row_weights"].unique().item() for one in parts if "row_weights" in one}
        assert factors == ({4 / max(1, filled)} if share else set())
    assert shares == {1, 0.25, 0}


@pytest.mark.parametrize(
    ("reward", "passed", "settings"),
    [(in_part, 2, {}), (ones, 4, {}), (by_prompt, 2, {}),
     ([outcome, style], 2, {"outcome_gate": "style"})],
)  # fmt: skip
def test_a_group_passes_where_an_evaluation_counts_a_success(
    make_trainer, reward, passed, settings
):
    trainer = make_trainer(reward=reward, max_steps=1, **settings)
    trainer.train()
    assert trainer.state.log_history[0][f"groups/passed/{passed}"] == 1


def test_resampling_fills_the_batch_with_whole_rows_of_fresh_prompts(make_trainer):
    """Prompt, completion, masks and advantage of each row are those of one rollout; further rounds
    generate what is missing alone."""
    sizes = []

    def reward(completions, prompts, **kwargs):
        sizes.append(len(completions))
        return by_prompt(completions, prompts)

    trainer = make_trainer(
        reward=reward, group_filter="resample", max_resample_rounds=20, stop=["1", "2", "a"],
        max_completion_length=30, generation_batch_size=16,
    )  # fmt: skip
    output = generated(trainer, 0, 12, 13, 14)  # 11+14, and three prompts that have variance
    assert sizes[0] == 16 and set(sizes[1:]) == {4}
    rows, decode = trainer.latest_rollouts(), trainer.processing_class.decode
    for i, row in enumerate(rows):
        prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()]
        completion = output["completion_ids"][i][output["completion_mask"][i].bool()]
        assert decode(prompt, skip_special_tokens=True) == row["prompt"]
        assert decode(completion, skip_special_tokens=True) == row["response"]
        assert output["advantages"][i] == pytest.approx(row["advantage"])
        assert row["prompt"] == rows[i // 4 * 4]["prompt"] and "User: 1" not in row["prompt"]
        assert abs(row["advantage"]) == pytest.approx(0.866, abs=1e-3)
    assert output["num_items_in_batch"] == output["completion_mask"].sum()
    logged = trainer._metrics["train"]
    assert logged["rollouts/used"] == [16] and logged["rollouts/dropped"] == [sum(sizes) - 16]


def test_further_rounds_give_rewards_the_columns_of_the_first_and_log_all_of_theirs(make_trainer):
    given = []

    def reward(completions, log_extra, **columns):
        given.append("answer" in columns)
        if len(given) == 2:
            log_extra("note", ["late"] * len(completions))
            return [float(i % 2) for i in range(len(completions))]
        return [0.0, 1.0] * 2 + [1.0] * (len(completions) - 4)

    trainer = make_trainer(reward=reward, group_filter="resample", remove_unused_columns=True,
                           max_steps=1)  # fmt: skip
    answers = [str(n) for n in range(len(trainer.train_dataset))]
    trainer.train_dataset = trainer.train_dataset.add_column("answer", answers)
    trainer.train()
    assert given == [False, False]
    assert [*trainer._logs["extra"]["note"]] == [None] * 4 + ["late"] * 4


def test_an_answer_that_a_reward_logs_as_ground_truth_is_logged_once(make_trainer):
    def reward(completions, answer, log_extra, **kwargs):
        log_extra("ground_truth", list(answer))
        return ones(completions)

    trainer = make_trainer(reward=reward)
    answers = [str(n) for n in range(len(trainer.train_dataset))]
    trainer.train_dataset = trainer.train_dataset.add_column("answer", answers)
    generated(trainer, 0, 1)
    assert [*trainer._logs["extra"]["ground_truth"]] == ["0"] * 4 + ["1"] * 4


@pytest.mark.parametrize(
    ("kept", "places"),
    [
        ([[True, True]], [(0, 0), (0, 1)]),
        ([[False, True, False], [False, True], [True]], [(1, 1), (0, 1), (2, 0)]),
        ([[False, False], [True]], [(1, 0), (0, 1)]),  # not full: the last keeps its group
        ([[False], [True, True]], [(1, 0)]),  # one too many
    ],
)
def test_which_group_takes_which_place(kept, places):
    assert fill(kept) == places


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"group_filter": "resample"}, "this one is a stream"),
     ({"outcome_gate": "verdict"}, "'verdict', but the reward functions are digits")],
)  # fmt: skip
def test_a_stream_to_resample_and_a_gate_that_is_no_reward_are_refused(
    make_trainer, settings, said
):
    def streaming(train_dataset, **arguments):
        return AblationTrainer(train_dataset=train_dataset.to_iterable_dataset(), **arguments)

    with pytest.raises(ConfigurationError, match=said):
        make_trainer(streaming, **settings)


# From rewards to advantages


@pytest.mark.parametrize("placebo", ["random", "length", "constant"])
def test_a_placebo_makes_the_advantages_and_leaves_the_logged_rewards(make_trainer, placebo):
    trainer = make_trainer(reward=by_prompt, placebo=placebo, baseline="none",
                           scale_rewards="none", generation_batch_size=16)  # fmt: skip
    prompts = (10, 11, 12, 13)
    first = generated(trainer, *prompts)["advantages"]
    assert [row["reward"] for row in trainer.latest_rollouts()] == [0.0, 1.0] * 8
    if placebo != "random":
        lengths = trainer.described.lengths
        expected = [length / 12 if placebo == "length" else 1.0 for length in lengths]
        assert first.tolist() == pytest.approx(expected)
        return
    assert set(first.tolist()) == {0.0, 1.0}
    assert torch.equal(first, generated(trainer, *prompts)["advantages"])
    trainer._step = 1  # a function of seed and step
    assert not torch.equal(first, generated(trainer, *prompts)["advantages"])


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, [2.0, 0.0, -1.0, -1.0]),  # sums 3, 1, 0, 0 with mean 1
        ({"outcome_gate": "outcome"}, [1.5, -0.5, -0.5, -0.5]),  # ±1/2; ±1 within the first two
        ({"outcome_gate": "outcome", "reward_noise": 1.0}, [0.5, -1.5, 0.5, 0.5]),
        # 2, 0, 0, ungraded with mean 2/3; the second and third differ by 1 in the other reward
        ({"outcome_gate": "style"}, [4 / 3, -2 / 3 + 0.5, -2 / 3 - 0.5, 0.0]),
    ],
)
def test_the_gate_s_advantages(make_trainer, switches, expected):
    trainer = make_trainer(reward=[outcome, style], scale_rewards="none",
                           generation_batch_size=8, **switches)  # fmt: skip
    got = generated(trainer)["advantages"]
    assert got.tolist() == pytest.approx(expected * 2)


LENGTH = {"overlong_penalty": 0.5, "overlong_share": 1.0}
KL = {"beta": BETA, "kl_in": "reward"}


@pytest.mark.parametrize(
    "settings",
    [
        LENGTH,
        *({**KL, "kl_estimator": estimator, "num_iterations": epochs}
          for estimator, epochs in (("k1", 1), ("k2", 2), ("k3", 1))),
        {**LENGTH, **KL, "outcome_gate": "outcome"},
        {**KL, "mask_truncated_completions": True},
    ],
    ids=str,
)  # fmt: skip
def test_penalties_are_subtracted_from_the_reward(make_trainer, settings):
    """Half the share of the longest length, and beta times the summed KL. Neither the logged
    rewards see them, nor the gate: it adds ±1 among the two right completions."""
    gate = "outcome_gate" in settings
    trainer = make_trainer(reward=[outcome, style] if gate else outcome, scale_rewards="none",
                           **ENDS, **settings)  # fmt: skip
    away_from_reference(trainer.model)
    output = generated(trainer)
    logged, lengths_N = trainer._metrics["train"], torch.tensor(trainer.described.lengths)
    assert len(lengths_N.unique()) > 1
    of_length_N = settings.get("overlong_penalty", 0.0) * lengths_N / 12
    assert logged.get("rollouts/overlong_penalty", [0.0]) == [pytest.approx(of_length_N.mean())]
    reward_N = torch.tensor([1.0, 1.0, 0.0, 0.0] * 2) - of_length_N
    if "kl_in" in settings:
        reference_NT = output["ref_per_token_logps"]
        mask_NT = (torch.arange(reference_NT.size(1)) < lengths_N[:, None]).long()
        with torch.no_grad():
            logps_NT = logps_of(trainer.model, {**output, "completion_mask": mask_NT})
        estimator = trainer.args.kl_estimator
        kl_N = (kl_to_reference(logps_NT, reference_NT, estimator) * mask_NT).sum(1)
        assert kl_N.abs().max() > 1e-3
        assert logged["kl"] == pytest.approx([(kl_N.sum() / mask_NT.sum()).item()], rel=1e-3)
        reward_N = reward_N - BETA * kl_N
    expected_PG = reward_N.view(2, 4) - reward_N.view(2, 4).mean(1, keepdim=True)
    expected_PG += torch.tensor([1.0, -1.0, 0.0, 0.0]) * gate
    kept_N = output["completion_mask"].any(1)
    assert kept_N.all() != trainer.mask_truncated_completions
    found_N, expected_N = output["advantages"][kept_N], expected_PG.flatten()[kept_N]
    torch.testing.assert_close(found_N, expected_N, atol=1e-5, rtol=1e-4)
    plain = [3.0, 1.0, 0.0, 0.0] if gate else [1.0, 1.0, 0.0, 0.0]
    assert [row["reward"] for row in trainer.latest_rollouts()] == plain * 2


@pytest.mark.parametrize(
    ("reward", "settings"), [(ones, LENGTH), ([ones, style], {"outcome_gate": "ones"})]
)
def test_neither_penalties_nor_what_is_gated_make_variance(make_trainer, reward, settings):
    """And an evaluation has no penalty."""
    trainer = make_trainer(reward=reward, group_filter="drop", **ENDS, **settings)
    output = generated(trainer)
    assert output["completion_mask"].sum() == 0 and output["num_items_in_batch"] == 0
    trainer.model.eval()
    trainer._generate_and_score_completions([dict(trainer.train_dataset[0])] * 8)
    assert "rollouts/overlong_penalty" not in trainer._metrics["eval"]


def test_sign_weights_act_on_trls_own_advantages_too(make_trainer):
    trainer = make_trainer(reward=[outcome, style], negative_weight=0.0, generation_batch_size=8,
                           multi_objective_aggregation="normalize_then_sum")  # fmt: skip
    got = generated(trainer)["advantages"]
    assert got.min() == 0 and got.max() > 0


@pytest.mark.parametrize("length_norm", ["mean", "token", "prompt"])
def test_the_weight_of_a_length_is_that_in_the_loss(make_trainer, length_norm):
    """|A| times the tokens, over what the length norm divides them by: own, all, or the group's."""
    trainer = make_trainer(reward=outcome, length_norm=length_norm,
                           **{**ENDS, "generation_batch_size": 16})  # fmt: skip
    output = generated(trainer, 0, 1, 2, 3)
    tokens = output["completion_mask"].sum(1)
    of_groups = tokens.view(4, 4).sum(1).repeat_interleave(4)
    assert len(set(of_groups.tolist())) > 1
    divisor = {"mean": tokens, "token": 1, "prompt": of_groups}[length_norm]
    weights = (output["advantages"].abs() * tokens / divisor)[tokens.argsort(stable=True)]
    expected = weights.view(4, 4).sum(1) / weights.sum()
    logged = [trainer._metrics["train"][f"advantages/weight/q{place}"][0] for place in range(1, 5)]
    assert logged == pytest.approx(expected.tolist(), rel=1e-5)


# The microbatches of a step that drops groups


def divided(trainer, batch, rows, keys):
    """The microbatches with these rows, of a step that drops the second of two groups of two."""
    amid_a_step(trainer, 2)
    ready = trainer.with_advantages(scored(batch, [1.0, 0.0, 1.0, 1.0]))
    parts = [{name: one[part] if one.dim() else one for name, one in ready.items()}
             for part in rows]  # fmt: skip
    for key in keys:
        weigh_microbatches(parts, key, lambda counts: counts)
    return parts


@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("rows", [[[0, 1], [2, 3]], [[0, 2], [1, 3]]], ids=["apart", "mixed"])
def test_bnpo_averages_over_the_microbatches_that_have_a_group(make_trainer, batch, rows, beta):
    """Each microbatch is divided by its kept tokens; one without a kept group is not counted."""
    trainer = make_trainer(group_filter="drop", num_generations=2, scale_rewards="none",
                           loss_type="bnpo", beta=beta)  # fmt: skip
    batch["ref_per_token_logps"] = nearby(trainer.model, batch, 0.4)
    mask = batch["completion_mask"] * torch.tensor([[1], [1], [0], [0]])

    def formula(logps):
        score = torch.exp(logps - logps.detach())
        terms = -torch.tensor([[0.5], [-0.5], [0], [0]]) * score
        terms = terms + beta * k3(logps, batch["ref_per_token_logps"]) * score
        means = [(terms * mask)[part].sum() / mask[part].sum() for part in rows if mask[part].any()]
        return sum(means) / len(means)

    parts = divided(trainer, batch, rows, ["row_weights"])
    assert_losses_are(trainer, parts, batch, formula)


CLIPPED = [f"clip_ratio/{one}" for one in ("low_mean", "high_mean", "region_mean", "low_min")]
BY_ROW = {"importance_sampling_level": "sequence", "epsilon": 1e-4, "loss_type": "grpo"}


@pytest.mark.parametrize(
    ("settings", "names", "lower"),
    [(BY_ROW, CLIPPED, 0.0), (BY_ROW, CLIPPED, 2.0),
     ({"loss_type": "vespo"}, ["vespo/phi_seq_mean"], 0.0)],
    ids=["some", "all are clipped", "vespo"],
)  # fmt: skip
def test_means_of_rows_are_over_those_that_stay(make_trainer, batch, settings, names, lower):
    """With one ratio a row, those that are left out have a ratio of 1, and none is clipped."""
    batch["advantages"] = torch.where(torch.tensor(lower > 0), -1.0, batch["advantages"])
    left = batch["completion_mask"] * torch.tensor([[1], [1], [0], [0]])
    found = {}
    for name, mask in (("none", batch["completion_mask"][:2]), ("drop", left)):
        trainer = amid_a_step(make_trainer(group_filter=name, num_generations=2, **settings))
        batch["old_per_token_logps"] = nearby(trainer.model, batch, 0.4) + lower
        part = {key: rows[: len(mask)] for key, rows in batch.items() if rows.dim()}
        part |= {"completion_mask": mask, "num_items_in_batch": mask.sum()}
        trainer._compute_loss(trainer.model, part)
        metrics = trainer._metrics["train"]
        found[name] = [metrics[one][-1] for one in names]
    assert found["drop"] == pytest.approx(found["none"]) and max(found["none"]) > 0
    assert found["none"][-1] == 1 or not lower


@pytest.mark.parametrize("coefficient", [0.0, 0.2])
def test_a_step_without_groups_leaves_the_adaptive_entropy_bonus(make_trainer, coefficient):
    batches = iter(range(9))

    def not_at_first(completions, **kwargs):
        varied = next(batches) not in (0, 1)
        return [float(i % 2 and varied) for i in range(len(completions))]

    trainer = make_trainer(
        reward=not_at_first, group_filter="drop", max_steps=3, use_adaptive_entropy=True,
        entropy_coef=coefficient, entropy_target=100.0, entropy_coef_delta=0.1,
        entropy_coef_max=1.0,
    )  # fmt: skip
    trainer.train()
    rows = [row["entropy_coef"] for row in trainer.state.log_history if "entropy_coef" in row]
    assert rows == pytest.approx([coefficient, coefficient, coefficient + 0.1])


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo"])
def test_the_entropy_bonus_averages_over_the_microbatches_that_have_a_group(
    make_trainer, batch, loss_type, adaptive
):
    """Without advantages the loss is the bonus: the mean entropy of each microbatch's kept tokens,
    over those that have some; the control of the coefficient does not see the factor."""
    trainer = make_trainer(group_filter="drop", num_generations=2, loss_type=loss_type,
                           entropy_coef=0.5, use_adaptive_entropy=adaptive, entropy_target=100.0,
                           entropy_coef_delta=0.25, entropy_coef_max=0.6)  # fmt: skip
    trainer._last_world_entropy = 0.0
    keys = ["row_weights", "bonus_weights"] if loss_type == "bnpo" else ["bonus_weights"]
    parts = divided(trainer, batch, [[0, 1], [2, 3]], keys)
    compute_loss = trainer._compute_loss

    def without_advantages(model, part):
        trainer.accelerator.gradient_state._set_sync_gradients(part is parts[-1])
        return compute_loss(model, {**part, "advantages": torch.zeros(2)})

    def formula(logps):
        logps, mask = logits_of(trainer.model, batch).log_softmax(-1), batch["completion_mask"][:2]
        entropies = -(logps.exp() * logps).sum(-1)[:2]
        return -0.5 * (entropies * mask).sum() / mask.sum()

    trainer._compute_loss = without_advantages
    assert_losses_are(trainer, parts, batch, formula)
    after = 0.6 if adaptive else 0.5
    assert trainer.entropy_coef == pytest.approx(after)
    assert trainer._metrics["train"]["entropy_coef"] == [pytest.approx(after)]
    assert trainer.args.entropy_coef_max == 0.6 and trainer.args.entropy_coef_delta == 0.25
