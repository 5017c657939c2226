"""The loss of `AblationTrainer` against closed formulas, in value and gradient.

The formulas follow the definitions and use no part of TRL's loss.
"""

import random
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accelerate import Accelerator

from tests.contract.alike import unequal
from tests.contract.formulas import (
    ACCUMULATION,
    BETA,
    LENGTHS,
    amid_a_step,
    assert_loss_is,
    gradients,
    k3,
    last_logged,
    logits_of,
    logps_of,
    nearby,
    scored,
)
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.settings import choices
from trl_ablate.switches import Surrogate
from trl_ablate.trainer.batching import DRAWN, ROW_WEIGHTS

LOW, HIGH, LEAST, MOST = 0.2, 0.3, 0.001, 0.003
CONSTANT, MOST_TOKENS = 9.0, 12
"""Of `length_norm_constant`, which is by default the `max_completion_length` of the fixture."""
FAR = 0.05
SURROGATES = choices(Surrogate)
POLICIES = ("on-policy", "old", "old and sampler", "stale")


def drawn(number: int) -> tuple[str, dict[str, Any]]:
    """Where the rollouts come from, and settings of the loss, at random."""
    one = random.Random(number)
    policy, surrogate = one.choice(POLICIES), SURROGATES[number % len(SURROGATES)]
    settings = {
        "surrogate": surrogate,
        "length_norm": one.choice(["mean", "constant", "microbatch", "token", "prompt"]),
        "epsilon": LEAST if surrogate == "probability" else LOW,
        "epsilon_high": MOST if surrogate == "probability" else HIGH,
        "beta": one.choice([0.0, BETA]),
        "kl_estimator": one.choice(["k1", "k2", "k3"]),
        "use_bias_correction_kl": one.random() < 0.5,
        "off_policy_mask_threshold": one.choice([None, FAR]),
        "covariance_kl": one.choice([0.0, 0.0, 0.7]),
        "covariance_share": 0.15,
        "rollout_staleness": int(policy == "stale"),
        "vllm_importance_sampling_correction": one.random() < 0.7,
        "vllm_importance_sampling_mode": one.choice(
            ["token_truncate", "token_mask", "sequence_truncate"]
        ),
        "vllm_importance_sampling_clip_max": 1.2,
        "kl_in": one.choice(["loss", "loss", "reward"]),
        "length_norm_constant": one.choice([CONSTANT, None]),
    }
    return policy, settings


def of_surrogate(name, logps, old, sampling, advantages, mask):
    """The terms of the tokens, where they have another gradient than -rA, and r in the KL."""
    now = logps.detach()
    ratio, score = torch.exp(logps - old), torch.exp(logps - now)
    positive, none = advantages > 0, torch.zeros_like(now).bool()
    if name == "clip":
        clipped = torch.where(positive, ratio > 1 + HIGH, ratio < 1 - LOW)
        bounded = ratio.clamp(1 - LOW, 1 + HIGH)
        return -torch.min(ratio * advantages, bounded * advantages), clipped, ratio
    if name == "no_clip":
        return -ratio * advantages, none, ratio
    if name == "reinforce":
        return -score * advantages, none, ratio
    if name == "probability":  # 0 where π - μ is above 0.003 and A > 0, or below -0.001 and A < 0
        moved = now.exp() - sampling.exp()
        held = torch.where(positive, moved > MOST, moved < -LEAST)
        return -ratio * advantages * ~held, held, ratio
    if name == "one_sided":  # where A < 0, times the ratio of the whole response, at most 1
        whole = ((now - old) * mask).sum(1, keepdim=True).exp()
        weight = torch.where(advantages < 0, whole.clamp(max=1), 1)
        return -weight * advantages * score, weight < 1, ratio
    high, low = torch.tensor(1 + HIGH).log(), torch.tensor(1 - LOW).log()
    clipped = torch.where(positive, (logps - old).clamp(max=high), (logps - old).clamp(min=low))
    geometric = torch.exp((clipped * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))
    return -geometric * advantages, clipped != logps - old, geometric


def correction(logps, sampling, mask, mode):
    """Of the sampler's distribution, at most 1.2."""
    difference = (logps - sampling) * mask
    if mode.startswith("sequence"):
        difference = difference.sum(1, keepdim=True)
    ratio = torch.exp(difference)
    assert (ratio > 1.2).any()
    return ratio.clamp(max=1.2) if mode.endswith("truncate") else ratio * (ratio <= 1.2)


def covariant(logps, advantages, mask):
    """The two of 18 tokens at which A and log π vary together most."""
    own, advantages = mask.bool(), advantages.expand(mask.shape)
    products = (advantages - advantages[own].mean()) * (logps - logps[own].mean())
    chosen = own & (products >= products[own].sort().values[-2])
    assert chosen.sum() == 2
    return chosen


def added_terms(logps, old, ratio, batch, settings):
    """The KL to the reference, unless it is in the reward, and the distance of covariant tokens."""
    ref = batch["ref_per_token_logps"]
    beta = settings["beta"] if settings["kl_in"] == "loss" else 0.0
    kl = {"k1": logps - ref, "k2": (logps - ref) ** 2 / 2, "k3": k3(logps, ref)}
    times = ratio if settings["use_bias_correction_kl"] else 1
    chosen = covariant(logps.detach(), batch["advantages"][:, None], batch["completion_mask"])
    return (
        beta * kl[settings["kl_estimator"]] * times
        + settings["covariance_kl"] * (logps - old).abs() * chosen
    )


def formula(logps, batch, settings):
    """The loss of one of two microbatches, which have 37 tokens, and where tokens are held."""
    mask, advantages = batch["completion_mask"], batch["advantages"][:, None]
    now, counts = logps.detach(), batch["completion_mask"].sum(1, keepdim=True)
    old = batch.get("old_per_token_logps", now)
    sampling = batch.get("sampling_per_token_logps", old)
    sampling = torch.where(sampling.isnan(), old, sampling)
    terms, held, ratio = of_surrogate(settings["surrogate"], logps, old, sampling, advantages, mask)
    if threshold := settings["off_policy_mask_threshold"]:
        apart = ((sampling - now) * mask).sum(1, keepdim=True) / counts
        masked = (advantages < 0) & (apart > threshold)
        assert masked.any() == apart.any()
        terms = terms * ~masked
    if settings["rollout_staleness"] and settings["vllm_importance_sampling_correction"]:
        mode = settings["vllm_importance_sampling_mode"]
        terms = terms * correction(now, sampling, mask, mode)
    terms = terms + added_terms(logps, old, ratio, batch, settings)
    own, constant = 37 / ACCUMULATION, settings["length_norm_constant"] or MOST_TOKENS
    divisor = {"mean": 4 * counts, "constant": 4 * constant, "microbatch": 4 * 8, "token": own,
               "prompt": own}[settings["length_norm"]]  # fmt: skip
    terms = terms * batch.get(ROW_WEIGHTS, torch.ones(4))[:, None]
    loss = (terms * mask / divisor).sum() / ACCUMULATION
    return loss, held.expand(mask.shape)[mask.bool()], torch.exp(now - old)


@pytest.mark.sample(18)
@pytest.mark.parametrize("number", range(60))
def test_loss_and_gradient(make_trainer, batch, number):
    """And the share of tokens that the surrogate holds, and the mean ratio, which are logged."""
    policy, settings = drawn(number)
    trainer = amid_a_step(make_trainer(**settings), ACCUMULATION)
    batch["ref_per_token_logps"] = nearby(trainer.model, batch, 0.4, seed=8)
    batch[ROW_WEIGHTS] = torch.tensor([0.5, 0.5, 2.0, 2.0])
    if settings["length_norm"] != "prompt":
        del batch[ROW_WEIGHTS]
    if policy.startswith("old"):
        batch["old_per_token_logps"] = nearby(trainer.model, batch, -0.4)
    if policy in ("old and sampler", "stale"):
        batch["sampling_per_token_logps"] = nearby(trainer.model, batch, -0.3, seed=5)
    if policy == "old and sampler":
        batch["sampling_per_token_logps"][0, 0] = torch.nan  # an engine did not report it
    assert_loss_is(trainer, batch, lambda logps: formula(logps, batch, settings)[0])
    with torch.no_grad():
        _, held, ratio = formula(logps_of(trainer.model, batch), batch, settings)
    row, share = last_logged(trainer), held.float().mean().item()
    assert row["clip_fraction"] == pytest.approx(share)
    if policy.startswith("old"):
        assert (0 < share < 1) == (settings["surrogate"] not in ("no_clip", "reinforce"))
    if settings["surrogate"] != "geometric":
        own = ratio[batch["completion_mask"].bool()]
        assert row["mean_ratio"] == pytest.approx(own.mean().item(), rel=1e-4)
    assert trainer.use_vllm is False


# What is added to the losses of TRL

LOSSES = {
    "bnpo": sum(LENGTHS) * ACCUMULATION,
    "cispo": 37,
    "luspo": 4 * ACCUMULATION,
    "sapo": 4 * torch.tensor(LENGTHS)[:, None] * ACCUMULATION,
}
"""What its terms are divided by."""


@pytest.mark.sample(5)
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    ("beta", "estimator", "covariance"),
    [(BETA, "k1", 0.0), (BETA, "k2", 0.0), (BETA, "k3", 0.0), (0.0, "k3", 0.7)],
)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_what_is_added_to_a_loss(
    make_trainer, batch, loss_type, beta, estimator, covariance, corrected
):
    """To value and gradient, off-policy; and the mean KL, which is logged."""
    settings = {"beta": beta, "kl_in": "loss", "kl_estimator": estimator,
                "use_bias_correction_kl": corrected, "covariance_kl": covariance,
                "covariance_share": 0.15}  # fmt: skip
    found, mask = [], batch["completion_mask"]
    for one in ({}, settings):
        trainer = make_trainer(loss_type=loss_type, entropy_coef=1e-12, **one)
        amid_a_step(trainer, ACCUMULATION)
        old = nearby(trainer.model, batch, 0.4)
        batch["ref_per_token_logps"] = nearby(trainer.model, batch, 0.4, seed=8)
        loss = trainer._compute_loss(trainer.model, {**batch, "old_per_token_logps": old})
        policy_loss = trainer._metrics["train"]["policy_loss"][-1]
        found.append((loss.item(), gradients(loss, trainer.model), policy_loss))
    logps = logps_of(trainer.model, batch)
    added = added_terms(logps, old, torch.exp(logps - old), batch, settings) * mask
    theirs = (added / LOSSES[loss_type]).sum()
    assert found[1][0] - found[0][0] == pytest.approx(theirs.item(), rel=1e-4, abs=1e-6)
    logged = theirs.item() * (1 if loss_type == "cispo" else ACCUMULATION)  # as TRL logs it
    assert found[1][2] - found[0][2] == pytest.approx(logged, rel=1e-4, abs=1e-6)
    expected = gradients(theirs, trainer.model)
    assert (found[1][1] - found[0][1] - expected).abs().max() <= 1e-4 * expected.abs().max()
    mean = [] if not beta else [(added.sum() / mask.sum() / beta).item()]
    assert trainer._metrics["train"]["kl"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("surrogate", ["reinforce", "one_sided"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_without_a_ratio_weights_of_tokens_choose_tokens(make_trainer, batch, surrogate, level):
    """At either level of the ratio, which is 1."""
    trainer = make_trainer(loss_type="grpo", surrogate=surrogate, top_entropy_quantile=0.3,
                           importance_sampling_level=level)  # fmt: skip
    mask, advantages = batch["completion_mask"], batch["advantages"][:, None]

    def highest(logps):
        of_all = logits_of(trainer.model, batch).log_softmax(-1).detach()
        entropies = -(of_all.exp() * of_all).sum(-1)
        chosen = entropies >= torch.quantile(entropies[mask.bool()], 0.7)
        score = torch.exp(logps - logps.detach())
        return (-advantages * score * chosen * mask / mask.sum(1, keepdim=True)).sum() / 4

    assert_loss_is(amid_a_step(trainer), batch, highest)


@pytest.mark.parametrize(
    ("settings", "setting", "attribute", "low"),
    [
        ({"loss_type": "grpo"}, "beta", "beta", 0.1),
        ({"kl_estimator": "k2"}, "beta", "beta", 0.1),
        ({"epsilon_high": 0.1}, "epsilon", "epsilon_low", 0.1),
        ({"surrogate": "geometric", "epsilon_high": 0.1}, "epsilon", "epsilon_low", 0.1),
        ({"surrogate": "probability", "epsilon": 1e-3}, "epsilon_high", "epsilon_high", 1e-3),
    ],
    ids=str,
)
def test_what_is_changed_on_the_trainer_is_what_the_loss_takes(
    make_trainer, batch, settings, setting, attribute, low
):
    """And logs, as a callback may do in the middle of a training; TRL's loss reads it there."""
    found = []
    for given, now in ((3 * low, 3 * low), (low, 3 * low), (low, low)):
        trainer = amid_a_step(make_trainer(**{**settings, setting: given}), ACCUMULATION)
        setattr(trainer, attribute, now)
        old, ref = nearby(trainer.model, batch, 0.4), nearby(trainer.model, batch, 0.4, seed=8)
        inputs = {**batch, "old_per_token_logps": old, "ref_per_token_logps": ref}
        inputs[ROW_WEIGHTS] = torch.full((4,), 0.5)
        loss = trainer._compute_loss(trainer.model, inputs)
        clipped = last_logged(trainer)["clip_fraction"]
        found.append([loss.item(), clipped, *gradients(loss, trainer.model).tolist()])
    assert found[1] == found[0] != found[2]


# From the rewards of two groups of two, with 8 and 3, and with 1 and 6 tokens, to the loss

DROP, HALVES = {"group_filter": "drop"}, [0.5, -0.5, 0.25, -0.25]
PROMPT = {"length_norm": "prompt"}
GPG = read_mapping(SHIPPED / "gpg.yaml", "recipe")
OF_GROUPS = [
    # 8/11, and (1 + 3) / 7
    ({"baseline": "group_token_mean"}, [1, 0, 1, 0.5], [3 / 11, -8 / 11, 3 / 7, -1 / 14], [1 / 18]),
    ({"baseline": "best_of_others"}, [1, 0, 1, 0.5], [1, 0, 0.5, 0], [1 / 18]),
    # pass rates 1/2 and 3/4
    ({"hard_group_exponent": 2.0}, [1, 0, 1, 0.5], [1 / 8, -1 / 8, 1 / 64, -1 / 64], [1 / 18]),
    # a mean over each group's tokens, then over the groups that count
    (PROMPT, [1, 0, 1, 0.5], HALVES, [1 / 22, 1 / 22, 1 / 14, 1 / 14]),
    (PROMPT | {"loss_type": "cispo", "epsilon_high": 5.0}, [1, 0, 1, 0.5], HALVES,
     [1 / 22, 1 / 22, 1 / 14, 1 / 14]),
    (PROMPT | {"loss_type": "cispo", "epsilon_high": 5.0} | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0],
     [1 / 11, 1 / 11, 0, 0]),
    # B/(B-M) · 1/B Σ_g 1/Σ|o| Σ_i Σ_t -log π · (r - mean), with F_norm 1; here B = 2, M = 1
    ({name: value for name, value in GPG.items() if name != "extends"}, [1, 0, 1, 1],
     [0.5, -0.5, 0, 0], [1 / 11, 1 / 11, 0, 0]),
    # what is left out leaves the divisor: 2 of 4 rows, 11 of 18 tokens
    (PROMPT | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0], [1 / 11, 1 / 11, 0, 0]),
    ({"length_norm": "mean"} | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0], [1 / 16, 1 / 6, 0, 0]),
    ({"length_norm": "constant"} | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0], [1 / 18, 1 / 18, 0, 0]),
    ({"length_norm": "microbatch"} | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0], [1 / 16, 1 / 16, 0, 0]),
    ({"length_norm": "token", "baseline": "batch_mean"} | DROP, [1, 0, 1, 1], [0.5, -0.5, 0, 0],
     [1 / 11, 1 / 11, 0, 0]),
    ({"length_norm": "nonzero", "positive_weight": 0.0}, [1, 0, 0, 1], [0, -0.5, -0.5, 0],
     [0, 1 / 4, 1 / 4, 0]),
]  # fmt: skip
"""Settings, rewards, and by hand: the advantages, and the weight of a token of each row."""


@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize(("switches", "outcomes", "advantages", "weights"), OF_GROUPS)
def test_what_the_rewards_of_groups_make_of_the_loss(
    make_trainer, batch, switches, outcomes, advantages, weights, beta
):
    settings = {"scale_rewards": "none", "length_norm_constant": CONSTANT, "num_generations": 2}
    settings |= {"length_norm": "token"} | switches
    trainer = amid_a_step(make_trainer(**settings, beta=beta))
    batch["ref_per_token_logps"] = nearby(trainer.model, batch, 0.4)
    ready = trainer.with_advantages(scored(batch, [*map(float, outcomes)]))
    torch.testing.assert_close(ready["advantages"], torch.tensor(advantages))
    direct = settings.get("loss_type") == "cispo"  # its loss is -A log π, of the same gradient

    def formula(logps):
        score = torch.exp(logps - logps.detach())
        terms = -torch.tensor(advantages)[:, None] * (logps if direct else score)
        terms = terms + beta * k3(logps, batch["ref_per_token_logps"]) * score
        return (terms * torch.tensor(weights)[:, None] * batch["completion_mask"]).sum()

    assert_loss_is(trainer, ready, formula)


# What is logged of it; that regrouping changes no metric is in `test_drop_in`


def training(make_trainer, **settings):
    """The logged rows of a training that is off-policy in two of three steps."""
    off_policy = {"num_iterations": 3, "learning_rate": 1.0, "optim": "sgd", "max_steps": 3}
    trainer = make_trainer(extras={"rollout_func": unequal}, **{**off_policy, **settings})
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "grpo"}, {"loss_type": "cispo", "epsilon_high": 1.01}, {"loss_type": "vespo"}],
    ids=str,
)
def test_regrouping_changes_no_metric_of_rejected_completions(make_trainer, batch, settings):
    found = []
    for drawn in ({}, {DRAWN: torch.zeros(4, dtype=torch.long)}):
        trainer = make_trainer(sampler_dtype="int8", sampler_gap_limit=0.1, epsilon=0.01,
                               vllm_importance_sampling_correction=False, **settings)  # fmt: skip
        amid_a_step(trainer)
        old, sampling = (nearby(trainer.model, batch, 0.3, seed) for seed in (7, 8))
        inputs = {"old_per_token_logps": old, "sampling_per_token_logps": sampling}
        trainer.mismatch.record = Mock(wraps=trainer.mismatch.record)
        trainer._compute_loss(trainer.model, {**batch, **inputs, **drawn})
        kept = trainer.mismatch.record.call_args.args[0].kept_N1
        found.append(dict(trainer._metrics["train"]))
    assert 0 < kept.sum() < 4
    assert found[0] == {name: pytest.approx(value, rel=1e-5) for name, value in found[1].items()}


def test_the_clip_fraction_of_cispo_is_trls(make_trainer):
    """With one microbatch per step, TRL's mean over microbatches is the mean over tokens."""
    rows = training(
        make_trainer, loss_type="cispo", epsilon_high=1.002, gradient_accumulation_steps=1,
        per_device_train_batch_size=8,
    )  # fmt: skip
    assert max(row["cispo_clip_ratio"] for row in rows) > 0.1
    for row in rows:
        assert row["clip_fraction"] == pytest.approx(row["cispo_clip_ratio"], abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({"loss_type": "sapo"}, 0.1, 1),
        ({"loss_type": "vespo"}, 0.1, 1),
        # far outside of the clip range, only delta changes the gradient of a negative advantage
        ({"loss_type": "grpo"}, 0, 0),
        ({"loss_type": "grpo", "delta": 1.01}, 0.05, 0.6),
    ],
    ids=str,
)
def test_what_counts_as_clipped_off_policy(make_trainer, settings, least, most):
    """And nothing on-policy."""
    settings |= {"learning_rate": 10.0, "max_grad_norm": 1e9, "epsilon": 1e6}
    on_policy, off_policy, _ = training(make_trainer, **settings)
    assert on_policy["clip_fraction"] == 0.0
    assert least <= off_policy["clip_fraction"] <= most


def test_sums_stay_off_devices_without_float64(make_trainer, monkeypatch):
    """As on Apple's GPUs: the sums are never moved to the device."""
    trainer = make_trainer(max_steps=1)
    trainer.train()
    trainer.ratio_sums.add("train", torch.tensor([3.0, 1.0, 4.0]))
    monkeypatch.setattr(Accelerator, "device", torch.device("mps"))
    trainer.log({})
    logged = trainer.state.log_history[-1]
    assert (logged["mean_ratio"], logged["clip_fraction"]) == (0.75, 0.25)
