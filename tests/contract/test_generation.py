"""Generation without a vLLM engine: stop strings, evaluation's sampling, and the number of forward
passes. That the saved one changes nothing is in `test_drop_in` and `test_loss`.

If a test needs only the outputs of an engine, a script replaces it.
"""

import math
import string
from unittest.mock import patch

import pytest
import torch
from trl import GRPOTrainer

from tests.contract.alike import MODES, Script
from trl_ablate import load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import read_mapping


class Engine(Script):
    """Its log-probabilities are slightly wrong."""

    trainer = generation_kwargs = None

    def __init__(self, **settings):
        super().__init__(eos=0, cap=12)
        self.asked = []
        self.noise = torch.Generator().manual_seed(0)

    def generate(self, prompts, images, num_generations, profiler):
        self.asked.append((len(prompts), self.generation_kwargs))
        completions = self.rollouts(prompts)["completion_ids"]
        logprobs = [self._logprobs(p, c) for p, c in zip(prompts, completions, strict=True)]
        return prompts, completions, logprobs, None

    def _logprobs(self, prompt, completion):
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            logits = self.trainer.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        logps_T = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        logps_T += 0.02 * torch.randn(len(completion), generator=self.noise)
        return [[value] for value in logps_T.tolist()]


@pytest.fixture
def scripted(make_trainer, monkeypatch):
    """`scripted(**config)`: a trainer whose vLLM engine is the script."""
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)

    def make(**settings):
        trainer = make_trainer(use_vllm=True, **settings)
        trainer.vllm_generation.trainer = trainer
        return trainer

    return make


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 2),
        ({"reuse_forward": False}, 4),
        ({"num_iterations": 2, "max_steps": 2}, 6),
        ({"vllm_importance_sampling_correction": False}, 2),
    ],
    ids=["on-policy", "switched off", "off-policy", "uncorrected"],
)
def test_forward_passes_per_rollout_batch(scripted, settings, passes):
    """Two microbatches per step, and two more per rollout batch for TRL's extra pass. The gap to
    the engine is logged with and without it."""
    trainer = scripted(**{"max_steps": 1, **settings})
    name = "_get_per_token_logps_and_entropies"
    forward = getattr(GRPOTrainer, name)
    with patch.object(GRPOTrainer, name, autospec=True, side_effect=forward) as calls:
        trainer.train()
    assert calls.call_count == passes
    gap = trainer.state.log_history[0].get("sampling/sampling_logp_difference/mean")
    if "vllm_importance_sampling_correction" not in settings:
        assert gap == pytest.approx(0.02 * math.sqrt(2 / math.pi), rel=0.3)


def test_every_recipe_names_its_correction():
    """TRL's default drops long completions first, which confounds every ablation of length. A
    recipe that extends another inherits it."""
    for path in SHIPPED.glob("*.yaml"):
        if "extends" not in read_mapping(path, "recipe"):
            settings = load_recipe(path, profile="h100").settings
            assert settings["vllm_importance_sampling_mode"] in MODES, path.stem


@pytest.mark.parametrize("min_tokens", [0, 6])
def test_min_tokens_holds_for_stop_strings(make_trainer, min_tokens):
    """A stop string can end a completion at token `min_tokens` + 1 at the earliest."""
    trainer = make_trainer(stop=["1", "2", "a"], min_tokens=min_tokens, max_completion_length=40)
    trainer.model.train()
    ids = trainer._generate([trainer.train_dataset[i // 8]["prompt"] for i in range(64)])[1]
    stopped = [row for row in ids if trainer.stop.ended(row)]
    assert len(stopped) > 10
    assert min(map(len, stopped)) == min_tokens + 1


def test_a_stop_string_that_the_prompt_began_ends_nothing(make_trainer):
    """The prompt ends with `<think>`, so any first letter would complete one of these strings."""
    first = string.ascii_letters + string.digits
    trainer = make_trainer(stop=[f"<think>{one}" for one in first], max_completion_length=9)
    trainer.model.train()
    generated = trainer._generate([trainer.train_dataset[0]["prompt"]] * 32)
    begun = [ids for ids, text in zip(generated[1], generated[3], strict=True) if text[:1] in first]
    assert len(begun) > 5
    assert max(map(len, begun)) == 9


def test_continuous_batching_ends_at_a_stop_string(make_trainer, monkeypatch):
    """transformers' version ignores stop strings, so the tokens after one are cut off."""
    trainer = make_trainer(stop=["3"], use_transformers_continuous_batching=True)
    tokenizer = trainer._tokenizer

    class Output:
        generated_tokens = tokenizer.encode("12 345")

    monkeypatch.setattr(
        type(trainer.model), "generate_batch", lambda *a, **k: {0: Output, 1: Output}, raising=False
    )
    trainer.model.eval()
    ids, _ = trainer._generate_single_turn([[5], [6]], None, {}, 2)
    assert not trainer.model.training
    assert [tokenizer.decode(row) for row in ids] == ["12 3", "12 3"]


CONTINUOUS = {
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"num_blocks": 64, "max_batch_tokens": 64},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("backend", "sampling"),
    [
        ({}, {"eval_temperature": 0.0, "num_generations_eval": 1}),
        (CONTINUOUS, {"eval_temperature": 1e-4}),
        (CONTINUOUS, {"eval_top_p": 1e-6}),
    ],
    ids=lambda one: ",".join(one),
)
def test_evaluation_samples_by_its_own_parameters(make_trainer, backend, sampling):
    """Each of these parameters leaves only the most probable token; training still samples."""
    seen = []

    def reward(prompts, completion_ids, **_):
        seen.extend(zip(prompts, completion_ids, strict=True))
        return [0.0] * len(prompts)

    trainer = make_trainer(reward=reward, **backend, **{"num_generations_eval": 2, **sampling})
    before = trainer.generation_config.to_dict(), dict(trainer.generation_kwargs)
    trainer.evaluate()
    assert seen
    for prompt, ids in seen:
        assert ids == greedy(trainer, prompt)
    assert (trainer.generation_config.to_dict(), trainer.generation_kwargs) == before
    trainer.model.train()
    drawn = trainer._generate([trainer.train_dataset[0]["prompt"]] * 4)[1]
    assert len({tuple(row) for row in drawn}) > 1


def greedy(trainer, prompt):
    """The most probable completion, one forward pass per token."""
    ids = trainer._tokenizer(prompt)["input_ids"]
    start = len(ids)
    trainer.model.eval()
    while len(ids) < start + trainer.max_completion_length:
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.tensor([ids])).logits[0, -1]
        ids = [*ids, int(logits.argmax())]
        if ids[-1] in trainer.eos_token_ids:
            break
    return ids[start:]


@pytest.mark.parametrize(
    "settings", [{}, {"reuse_forward": False}, {"num_iterations": 2, "beta": 0.1}]
)
def test_an_engine_is_asked_once_with_the_parameters_of_evaluation(scripted, monkeypatch, settings):
    """Five questions; TRL would evaluate them one at a time, with the correction of training.
    Nothing is run forward, and the engine gets its own parameters back."""
    trainer = scripted(eval_temperature=0.5, eval_top_p=0.9, num_generations_eval=2, stop=["1"],
                       per_device_eval_batch_size=2, **settings)  # fmt: skip
    engine = trainer.vllm_generation
    engine.generation_kwargs = kept = trainer.args.generation_kwargs
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", None)
    metrics = trainer.evaluate()
    assert engine.asked == [(10, {**kept, "temperature": 0.5, "top_p": 0.9})]
    assert engine.generation_kwargs is kept and "temperature" not in kept
    assert metrics["eval_mean_length"] == pytest.approx(metrics["eval_completions/mean_length"])
    assert trainer.vllm_importance_sampling_correction
