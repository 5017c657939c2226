"""Rollouts by other weights than the policy's, and their correction without an engine."""

from unittest.mock import patch

import pytest
import torch

from tests.contract.alike import Script, unequal, weights
from tests.contract.formulas import (
    amid_a_step,
    assert_same,
    gradients,
    last_logged,
    logits_of,
    nearby,
)
from trl_ablate import ConfigurationError
from trl_ablate.losses import importance_ratio
from trl_ablate.rounding import rounded
from trl_ablate.trainer.sampler import check_text, truncated_logps

STEPS = 4
GAP = "sampling/sampling_logp_difference/mean"
FAST = {"optim": "sgd", "learning_rate": 1.0, "max_steps": STEPS, "max_grad_norm": 1e9}


def varied(text):
    return sum(map(ord, text)) % 7 / 3


def watched(make_trainer, score=varied, **settings):
    """The policy's weights at each GRPO step, as they are for the sampler, and those that generated
    its rollouts."""
    policy, sampled = [], []

    def reward(completions, **kwargs):
        dtype = trainer.args.sampler_dtype
        own = [one.detach() for one in trainer.model.parameters()]
        policy.append(torch.cat([(rounded(x, dtype) if dtype else x).flatten() for x in own]))
        return [score(text) for text in completions]

    trainer = make_trainer(reward=reward, **{**FAST, **settings})
    generate = trainer.model.generate

    def spy(*args, **kwargs):
        sampled.append(weights(trainer))
        return generate(*args, **kwargs)

    trainer.model.generate = spy
    trainer.train()
    return trainer, policy, sampled


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (0, {}),
        (2, {}),
        (9, {"num_iterations": 2, "max_steps": 2 * STEPS}),
        (0, {"sampler_dtype": "bfloat16"}),
        (1, {"sampler_dtype": "int8"}),
    ],
)
def test_rollouts_come_from_the_rounded_weights_of_k_steps_ago(make_trainer, k, settings):
    """At the start, and if k is larger than the steps done, from the first weights; then, there is
    no gap to log but that of rounding."""
    trainer, policy, sampled = watched(make_trainer, rollout_staleness=k, **settings)
    assert len(policy) == len(sampled) == STEPS
    for step in range(STEPS):
        assert torch.equal(sampled[step], policy[max(0, step - k)])
        assert step == 0 or not torch.equal(policy[step], policy[step - 1])
    gaps = [row[GAP] for row in trainer.state.log_history if GAP in row]
    assert trainer.args.sampler_differs == bool(gaps)
    assert not gaps or max(gaps) > 1e-4
    assert "sampler_dtype" in settings or not gaps or gaps[0] == pytest.approx(0, abs=1e-5)
    assert "sampler_dtype" not in settings or not torch.equal(sampled[-1], weights(trainer))


def test_several_rounds_of_a_step_count_once(make_trainer):
    _, policy, sampled = watched(
        make_trainer, score=lambda text: 1.0, rollout_staleness=1, group_filter="resample",
        max_resample_rounds=2,
    )  # fmt: skip
    assert len(sampled) == 3 * STEPS
    assert all(torch.equal(one, policy[0]) for one in sampled)  # every step is skipped


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "vespo"])
def test_completions_far_from_the_sampler_leave_the_loss(make_trainer, batch, loss_type, corrected):
    """Loss and gradient are those with advantage 0 where |mean log(π_old/μ)| is above the limit."""
    settings = {"loss_type": loss_type, "sampler_dtype": "int8",
                "vllm_importance_sampling_correction": corrected,
                "vllm_importance_sampling_mode": "token_truncate"}  # fmt: skip
    plain, limited = make_trainer(**settings), make_trainer(**settings, sampler_gap_limit=0.15)
    old, mask = nearby(plain.model, batch, 0.0), batch["completion_mask"]
    sampling = nearby(plain.model, batch, 0.3)
    sampling[1, 0] = torch.nan  # an engine did not report it
    batch |= {"old_per_token_logps": old, "sampling_per_token_logps": sampling}
    if corrected:
        ratio = importance_ratio(old, sampling, mask, "token_truncate", None, 3.0)
        batch["importance_sampling_ratio"] = ratio
    lengths = mask.sum(1)
    gaps = ((old - sampling).nan_to_num(0.0) * mask).sum(1).abs() / lengths
    kept = gaps <= 0.15
    assert 0 < kept.sum() < 4, gaps
    found = []
    for one, inputs in (
        (limited, batch), (plain, {**batch, "advantages": batch["advantages"] * kept})
    ):  # fmt: skip
        amid_a_step(one).mismatch.saves_a_forward = False
        loss = one._compute_loss(one.model, inputs)
        found.append((loss.item(), gradients(loss, one.model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6, abs=1e-8)
    assert_same(found[0][1], found[1][1])
    row = last_logged(limited)
    by_length = kept[lengths.argsort()].logical_not().float().tolist()
    assert [row[f"sampling/dropped/q{quarter}"] for quarter in (1, 2, 3, 4)] == by_length


def test_evaluation_is_by_the_policy(make_trainer):
    """Also after a training by other weights."""
    settings = {"sampler_dtype": "int8", "rollout_staleness": 2, "num_generations_eval": 1}
    trainer, _, sampled = watched(make_trainer, **settings)
    trained = len(sampled)
    trainer.evaluate()
    assert not torch.equal(sampled[trained - 1], weights(trainer))
    assert len(sampled) > trained
    assert all(torch.equal(one, weights(trainer)) for one in sampled[trained:])


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_engine_is_loaded_with_the_stale_weights(make_trainer, evaluates):
    """At every step; and with the policy's before anything else is generated."""
    synced = []

    class Engine(Script):
        def sync_weights(self) -> None:
            synced.append(weights(trainer))

    engine = Engine(eos=0, cap=12, tool=False)
    policy, drawn_by = [], []

    def reward(completions, **kwargs):
        if trainer.model.training:
            policy.append(weights(trainer))
            drawn_by.append(synced[-1])
        return [varied(text) for text in completions]

    with patch("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: engine):
        trainer = make_trainer(reward=reward, rollout_staleness=1, use_vllm=True,
                               vllm_mode="colocate", eval_steps=1,
                               eval_strategy="steps" if evaluates else "no", **FAST)  # fmt: skip
        trainer.train()
        assert evaluates or len(synced) == STEPS
        for step in range(STEPS):
            assert torch.equal(drawn_by[step], policy[max(0, step - 1)])
        trainer.model.eval()
        trainer._generate([trainer.train_dataset[0]["prompt"]])
        assert torch.equal(synced[-1], weights(trainer))
        assert not torch.equal(synced[-1], synced[-2])


def test_the_gap_to_an_engine_is_that_of_the_policy_before_its_updates(make_trainer):
    """The same in both epochs over a rollout batch, also without a correction."""
    with patch("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: Script(eos=0, cap=12)):
        trainer = make_trainer(use_vllm=True, vllm_importance_sampling_correction=False,
                               sampler_gap_limit=99.0, num_iterations=2, **FAST)  # fmt: skip
        trainer.train()
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    gaps = [row[GAP] for row in rows]
    assert gaps[1::2] == pytest.approx(gaps[:-1:2])


# p = .5 .25 .125 .125; the ratio of the policy to the sampler is Z, the sum of the kept ones
@pytest.mark.parametrize(
    ("rule", "token", "z"),
    [
        ({"top_k": 1}, 0, 0.5),
        ({"top_p": 0.6}, 0, 0.75),
        ({"min_p": 0.4}, 0, 0.75),
        ({"min_p": 0.2}, 0, 1.0),
        ({"top_k": 2, "top_p": 0.6}, 0, 0.5),  # top_p 0.6 of 2/3 and 1/3 keeps the first
        ({"top_k": 1}, 3, 1.0),  # a token that is not kept is not corrected
    ],
    ids=str,
)
def test_truncated_log_probabilities_by_hand(rule, token, z):
    p = torch.tensor([0.5, 0.25, 0.125, 0.125])
    logits = p.log().expand(2, 3, 4) + torch.tensor([1.0, -2.0])[:, None, None]
    got = truncated_logps(logits, torch.full((2, 3), token), **rule)
    assert got.exp().tolist() == [[pytest.approx(p[token].item() / z)] * 3] * 2


TOP_P = {"top_p": 0.7, "correct_truncation": True}


@pytest.mark.parametrize(
    "settings",
    [
        TOP_P,
        {**TOP_P, "num_iterations": 2, "sampler_dtype": "bfloat16"},
        {"top_p": 0.7, "num_iterations": 2, "sampler_dtype": "bfloat16"},
        {"top_k": 20, "correct_truncation": True, "vllm_importance_sampling_correction": False},
        {"min_p": 0.6, "correct_truncation": True, "num_iterations": 2},
        {"top_p": 0.7},
    ],
    ids=str,
)
def test_only_what_is_asked_for_is_corrected(make_trainer, settings):
    """The sampler's log p, less log Z if truncation is corrected. As without a sampler, the minimum
    length is not; but Z is that of the tokens which it leaves."""
    trainer = make_trainer(
        min_tokens=4, temperature=0.2, generation_batch_size=8, max_steps=1, learning_rate=0.0,
        vllm_importance_sampling_mode="token_truncate", **settings,
    )  # fmt: skip
    with torch.no_grad():  # an end is likely, so that forbidding it changes which tokens are kept
        trainer.model.lm_head.weight[trainer.eos_token_ids] *= 5
    seen, compute_loss = [], trainer._compute_loss
    trainer._compute_loss = lambda model, part: (seen.append(part), compute_loss(model, part))[1]
    trainer.train()
    row = trainer.state.log_history[0]
    if not trainer.args.sampler_differs:
        assert not [name for name in (*row, *seen[0]) if "sampling" in name]
        return
    limits = {name: settings[name] for name in ("top_p", "top_k", "min_p") if name in settings}
    gaps, ratios = [], []
    for one in seen:
        mask, ids = one["completion_mask"].bool(), one["completion_ids"]
        of_policy = log_p(tempered(trainer.model, one), ids)
        with trainer._sampling_weights():
            logits = tempered(trainer.model, one)
        expected = log_p(logits, ids)
        if trainer.args.correct_truncation:
            logits[:, :4, trainer.eos_token_ids] = -torch.inf
            log_z = log_p(logits, ids) - truncated_logps(logits, ids, **limits)
            expected = expected - log_z
            assert log_z[:, :4].min() < -0.01
        found = one["sampling_per_token_logps"]
        torch.testing.assert_close(found[mask], expected[mask], atol=1e-4, rtol=1e-4)
        gaps.append((of_policy - expected)[mask])
        if "num_iterations" in settings:  # else the loss computes it
            ratios.append(one["importance_sampling_ratio"][mask])
    gap = torch.cat(gaps)
    ratio = gap.exp().clamp(max=3)
    assert (ratio - 1).abs().max() > 1e-3
    if ratios:
        torch.testing.assert_close(torch.cat(ratios), ratio, atol=1e-3, rtol=1e-3)
    if not trainer.args.vllm_importance_sampling_correction:
        ratio = torch.ones_like(ratio)
    size = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    assert row[GAP] == pytest.approx(gap.abs().mean().item(), rel=1e-3)
    assert row["sampling/effective_sample_size"] == pytest.approx(size.item(), rel=1e-3)
    least = row["sampling/importance_sampling_ratio/min"]
    assert least == pytest.approx(ratio.min().item(), rel=1e-3)


@torch.no_grad()
def tempered(model, batch):
    return logits_of(model, batch) / 0.2


def log_p(logits, ids):
    return logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]


def refused(said):
    return pytest.raises(ConfigurationError, match=said)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rollout_staleness", 1), ("sampler_dtype", "int8"), ("correct_truncation", True)],
)
def test_a_function_that_samples_by_itself_is_refused(make_trainer, name, value):
    with refused(f"rollout_func .* {name} {value}"):
        make_trainer(**{name: value}, top_p=0.9, extras={"rollout_func": unequal})


def test_sharded_weights_and_images_are_refused(make_trainer):
    trainer = make_trainer(rollout_staleness=1)
    trainer.model.train()
    trainer.is_deepspeed_enabled = True
    with refused("which FSDP and DeepSpeed shard"), trainer._sampling_weights():
        pass
    check_text(None)
    with refused("for text only, but a prompt has images"):
        check_text([["an image"]])


def test_an_engine_loads_the_policy_again_after_a_generation_that_failed(make_trainer):
    trainer = make_trainer(rollout_staleness=1)
    trainer.model.train()
    trainer._last_loaded_step = 5
    with pytest.raises(RuntimeError, match="no memory"), trainer._sampling_weights():
        raise RuntimeError("no memory")
    assert trainer._last_loaded_step == -1
