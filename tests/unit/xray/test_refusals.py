"""What cannot be compared is refused, or noted, in one sentence; rollouts that a run has saved."""

import pytest
import torch

from tests.support.tiny_models import save_tiny_qwen2
from tests.support.xray_cases import small_xray
from trl_ablate.cli.main import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.overrides import as_words
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.run.json_files import read_jsonl, write_jsonl
from trl_ablate.xray import xray
from trl_ablate.xray.drawing import training_set
from trl_ablate.xray.stored_rollouts import RolloutFolder

ARMS, LENGTHS = ["grpo", "std_dev_off"], ["grpo", "length_norm_constant"]


def refused(settings, *arguments, **more) -> str:
    with pytest.raises(ConfigurationError) as error:
        xray(*arguments, overrides=settings, **more)
    sentence = str(error.value)
    assert "\n" not in sentence and len(sentence) < 400
    return sentence


@pytest.mark.parametrize(
    ("arms", "changes", "why"),
    [
        (["grpo", "grpo+temperature=0.5"], {},
         "no arm is left to compare with 'grpo': grpo+temperature=0.5 generates differently: "
         "temperature is 0.5, not 1.0; name arms that differ in the objective alone"),
        (["grpo", "grpo+template=question_only"], {},
         "asks other questions: template is 'question_only'"),
        (["grpo+num_generations=4", "grpo+num_generations=8"], {},
         "generates differently: num_generations is 8, not 4"),
        (["grpo", "grpo+start=sft_mid"], {}, "trains another model: start is 'sft_mid'"),
        (["grpo", "grpo+group_filter=resample"], {},
         "generates differently: group_filter 'resample'"),
        (["grpo+optimizer_batch_size=16", "grpo+optimizer_batch_size=32"], {},
         "an optimizer step takes several rollout batches"),
        (["grpo+group_filter=resample", "grpo"], {},
         "nothing can be compared with 'grpo+group_filter=resample', whose rollouts all arms "
         "train on: generates differently: group_filter 'resample' draws further rollouts; name "),
        (ARMS, {"fp16": True, "bf16": False, "use_cpu": True}, "fp16 skips those that overflow"),
        (ARMS, {"scale_rewards": "group"}, "'scale_rewards' for all arms replaces"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(tiny_model, arms, changes, why):
    settings = small_xray(tiny_model, **changes)
    of_arms = {key: value for key, value in settings.items() if f"+{key}=" not in str(arms)}
    assert why in refused(of_arms, arms)


def test_a_checkpoint_that_does_not_do(tiny_model, tmp_path):
    other, empty = save_tiny_qwen2(tmp_path / "checkpoint-3", hidden_size=32), tmp_path / "empty"
    empty.mkdir()
    for checkpoint, why in (
        (other, "is a checkpoint of another model: its"),
        (tmp_path / "x", "does not exist"),
        (empty, "holds no weights"),
    ):
        assert why in refused(small_xray(tiny_model), ARMS, [checkpoint], 1)


@pytest.mark.slow
def test_a_missing_optimizer_state_is_noted_and_others_are_used(tiny_model, tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    save_tiny_qwen2(checkpoint, max_position_embeddings=256)
    settings = small_xray(tiny_model)
    result = xray(ARMS, [checkpoint], 1, overrides=settings)
    assert result.points[0].notes == [
        f"{checkpoint} has no plain second moments (optimizer.pt); they are estimated from the "
        "reference's gradients"
    ]
    write_moments(tiny_model, checkpoint)
    result = xray(ARMS, [checkpoint], 2, overrides=settings)
    assert result.points[0].notes == []
    figures = result.points[0].arms["std_dev_off"].figures
    # second moments of 1, corrected by 1 - 0.95², divide every coordinate by the same number
    divisor = (1 / (1 - 0.95**2)) ** 0.5
    assert figures.adam.cosine_mean == pytest.approx(figures.plain.cosine_mean, abs=1e-5)
    assert figures.adam.noise == pytest.approx(figures.plain.noise / divisor, rel=1e-4)


def write_moments(model, checkpoint):
    """The state of an Adam after two steps, whose second moments are all 1."""
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(model)
    decayed = [n for n, _ in weights.named_parameters() if "norm" not in n and "bias" not in n]
    named = dict(weights.named_parameters())
    groups = [[named[n] for n in decayed], [p for n, p in named.items() if n not in decayed]]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], betas=(0.9, 0.95))
    for parameter in named.values():
        ones = torch.ones_like(parameter)
        optimizer.state[parameter] = {
            "step": torch.tensor(2.0), "exp_avg": ones.clone(), "exp_avg_sq": ones,
        }  # fmt: skip
    torch.save(optimizer.state_dict(), checkpoint / "optimizer.pt")


@pytest.mark.slow
def test_rollouts_of_another_template(tiny_model, tmp_path):
    settings = small_xray(tiny_model)
    xray(ARMS, (), 1, overrides=settings, output=tmp_path)
    rollouts = tmp_path / "rollouts" / "base"
    other = {**settings, "template": "question_only"}
    sentence = refused(other, ARMS, (), 1, rollouts=rollouts)
    assert "were drawn with template 'r1_zero', and the reference has 'question_only'" in sentence
    assert "has 1 of 2 rollout batches" in refused(settings, ARMS, (), 2, rollouts=rollouts)
    rows = list(read_jsonl(rollouts / "questions.jsonl"))
    write_jsonl(rollouts / "questions.jsonl", [{**row, "prompt": "1+1="} for row in rows])
    assert "answer other prompts" in refused(settings, ARMS, (), 1, rollouts=rollouts)


@pytest.mark.slow
def test_what_was_stored_is_of_the_same_rewards(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, shown = small_xray(tiny_model), []
    del settings["reward_funcs"]
    names = [f"grpo+reward_funcs=[{name}.py:score]" for name in "ab"]

    def write(name, start=0):
        text = (
            f"def score(completions, **kwargs):\n    return [{start} + len(c) for c in completions]"
        )
        (tmp_path / f"{name}.py").write_text(text)

    def again(arms=names):
        shown.clear()
        xray(arms, (), 1, overrides=settings, output="x", say=shown.append)

    write("a")
    write("b")
    again()
    write("b", 1)
    again()
    assert f"base: {names[1]}" in shown and f"base: {names[0]}" not in shown
    with pytest.raises(ConfigurationError, match="were drawn with reward_funcs"):
        again(["grpo+reward_funcs=[{path: a.py:score, kwargs: {n: 1}}]", names[1]])
    write("a", 1)
    with pytest.raises(ConfigurationError, match="were drawn with files .*a.py@"):
        again()


def test_the_command(tiny_model, tmp_path, capsys):
    settings = small_xray(tiny_model)
    profile = settings.pop("profile")
    words = ["xray", *ARMS, "--profile", profile, "--batches", "2", "--output", str(tmp_path / "x")]
    assert main([*words, *as_words(settings)]) == 0
    shown = capsys.readouterr().out
    assert "std_dev_off: " in shown and "rules:" in shown
    assert {one.name for one in (tmp_path / "x").iterdir()} >= {"xray.json", "XRAY.md", "xray.png"}
    assert main(["xray", "--batches", "2"]) == 2
    assert "missing ARMS" in capsys.readouterr().err


@pytest.fixture(scope="module")
def rows(tiny_model):
    """A rollout batch of 16 in groups of 4, as `RolloutWriter` saves it."""
    resolved = load_recipe("grpo", overrides=small_xray(tiny_model))
    prompts = training_set(resolved)[0]["prompt"][:4]
    responses = ["+", "-7", "==a", "*" * 12]  # ends by itself, by stop strings, at the limit
    return [{"prompt": prompt, "response": text} for prompt in prompts for text in responses]


def test_saved_rollouts_are_scored_and_compared(tiny_model, rows, tmp_path):
    write_jsonl(tmp_path / "20.jsonl", rows)
    settings = small_xray(tiny_model)
    result = xray(
        LENGTHS, (), 1, overrides=settings, output=tmp_path / "x", rollouts=tmp_path / "20.jsonl"
    )
    assert result.to_dict()["arms"]["length_norm_constant"][0]["cosine_mean"] < 1
    stored = RolloutFolder(tmp_path / "x" / "rollouts" / "base").batch(0)
    assert stored is not None
    assert stored.lengths_N.tolist() == [2, 2, 3, 12] * 4
    assert [ids[-1] for ids in stored.completion_ids[:2]] == [1, 27]  # <|end|> and "7"
    assert stored.rewards_NF[:4, 0].tolist() == [0, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:12], "has 12 rollouts, and 1 rollout batches take 16"),
        (lambda rows: rows[1:] + rows[:1], "has no whole groups of 4"),
        (lambda rows: [{**row, "prompt": "1+1="} for row in rows], "does not ask"),
    ],
)
def test_saved_rollouts_that_do_not_do(tiny_model, rows, tmp_path, change, why):
    write_jsonl(tmp_path / "20.jsonl", change(rows))
    file = tmp_path / "20.jsonl"
    assert why in refused(small_xray(tiny_model), LENGTHS, (), 1, rollouts=file)
