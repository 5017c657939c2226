"""Rollouts that an X-ray or a run has stored: read again, or refused in one sentence."""

import shutil

import pytest

from tests.support.tiny_models import save_tiny_qwen2
from tests.support.xray_cases import small_xray
from tests.unit.xray.conftest import ARMS, BATCHES
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.run.json_files import read_jsonl, write_jsonl
from trl_ablate.xray import xray
from trl_ablate.xray.drawing import training_set
from trl_ablate.xray.stored_rollouts import RolloutFolder

TWO, LENGTHS = ["grpo", "std_dev_off"], ["grpo", "length_norm_constant"]


def refused(settings, arms, checkpoints=(), batches=1, **more) -> str:
    with pytest.raises(ConfigurationError) as error:
        xray(arms, checkpoints, batches, overrides=settings, **more)
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
        (["grpo", "grpo+start=sft_mid"], {}, "trains another model: start is 'sft_mid'"),
        (["grpo", "grpo+group_filter=resample"], {},
         "generates differently: group_filter 'resample'"),
        (["grpo+optimizer_batch_size=16", "grpo+optimizer_batch_size=32"], {},
         "an optimizer step takes several rollout batches"),
        (["grpo+group_filter=resample", "grpo"], {},
         "nothing can be compared with 'grpo+group_filter=resample', whose rollouts all arms "
         "train on: generates differently: group_filter 'resample' draws further rollouts; name "),
        (TWO, {"fp16": True, "bf16": False, "use_cpu": True}, "fp16 skips those that overflow"),
        (TWO, {"scale_rewards": "group"}, "'scale_rewards' for all arms replaces"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(tiny_model, arms, changes, why):
    settings = small_xray(tiny_model, **changes)
    of_arms = {key: value for key, value in settings.items() if f"+{key}=" not in str(arms)}
    assert why in refused(of_arms, arms)


def test_settings_of_all_arms_are_no_setting_that_an_arm_of_a_study_declares(tiny_model):
    settings = small_xray(tiny_model, length_norm="constant")
    assert "'length_norm' for all arms replaces what arm" in refused(settings, ["chains"])
    assert "--xray_seed is -1; give a number from 0" in refused(
        small_xray(tiny_model), TWO, seed=-1
    )
    with pytest.raises(ConfigurationError, match="resolved recipes have their settings"):
        xray({"a": load_recipe("grpo")}, (), 1, overrides={"beta": 0.1})


def test_a_checkpoint_that_does_not_do(tiny_model, tmp_path):
    other, empty = save_tiny_qwen2(tmp_path / "checkpoint-3", hidden_size=32), tmp_path / "empty"
    empty.mkdir()
    for checkpoint, why in (
        (other, "is a checkpoint of another model: its"),
        (tmp_path / "x", "does not exist"),
        (empty, "holds no weights"),
    ):
        assert why in refused(small_xray(tiny_model), TWO, [checkpoint])
    given = tmp_path / "5.jsonl"
    assert "5.jsonl does not exist" in refused(small_xray(tiny_model), TWO, rollouts=given)


@pytest.mark.slow
def test_it_continues_from_what_is_stored(tiny_model, output, on_policy):
    def again():
        said = []
        overrides = small_xray(tiny_model)
        found = xray(ARMS, (), BATCHES, overrides=overrides, output=output, say=said.append)
        return found.to_dict(), said

    (note,) = on_policy.points[0].notes
    assert note.startswith("base has no plain second moments (optimizer.pt); they are estimated")
    found, said = again()
    assert found == on_policy.to_dict()
    assert said[1:] == ["base: rollouts", f"base: {note}"]
    (output / "gradients" / "base" / "length_norm_constant.npz").unlink()
    (output / "rollouts" / "base" / "batch-001.npz").unlink()
    drawn, _ = again()
    assert (output / "rollouts" / "base" / "batch-001.npz").exists()
    for entries in (*drawn["arms"].values(), *found["arms"].values()):
        entries[0]["seconds_per_batch"] = 0
    assert drawn == found


@pytest.mark.slow
def test_stored_rollouts_of_another_template_too_few_or_of_other_prompts(
    tiny_model, rollouts, tmp_path
):
    settings = small_xray(tiny_model)
    other = {**settings, "template": "question_only"}
    sentence = refused(other, TWO, rollouts=rollouts)
    assert "were drawn with template 'r1_zero', and the reference has 'question_only'" in sentence
    assert "has 3 of 4 rollout batches" in refused(settings, TWO, batches=4, rollouts=rollouts)
    changed = shutil.copytree(rollouts, tmp_path / "base")
    rows = list(read_jsonl(changed / "questions.jsonl"))
    write_jsonl(changed / "questions.jsonl", [{**row, "prompt": "1+1="} for row in rows])
    assert "answer other prompts" in refused(settings, TWO, rollouts=changed)
    (changed / "batch-000.npz").write_bytes(b"PK")
    assert "batch-000.npz could not be read" in refused(settings, TWO, rollouts=changed)


@pytest.mark.slow
def test_what_was_stored_is_of_the_same_rewards(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, shown = small_xray(tiny_model), []
    del settings["reward_funcs"]
    names = [f"grpo+reward_funcs=[{name}.py:score]" for name in "ab"]

    def write(name, start):
        code = f"    return [{start} + len(text) for text in completions]"
        (tmp_path / f"{name}.py").write_text(f"def score(completions, **kwargs):\n{code}")

    def again(arms=names):
        shown.clear()
        xray(arms, (), 1, overrides=settings, output="x", say=shown.append)

    write("a", 0)
    write("b", 0)
    again()
    write("b", 1)
    again()
    assert f"base: {names[1]}" in shown and f"base: {names[0]}" not in shown
    with pytest.raises(ConfigurationError, match="were drawn with reward_funcs"):
        again(["grpo+reward_funcs=[{path: a.py:score, kwargs: {n: 1}}]", names[1]])
    write("a", 1)
    with pytest.raises(ConfigurationError, match="were drawn with files .*a.py@"):
        again()


@pytest.fixture(scope="module")
def rows(tiny_model):
    """A rollout batch of 16 in groups of 4, as `RolloutWriter` saves it."""
    resolved = load_recipe("grpo", overrides=small_xray(tiny_model))
    prompts = training_set(resolved)[0]["prompt"][:4]
    responses = ["+", "-7", "==a", "*" * 12]  # ends by itself, by stop strings, at the limit
    rows = [{"prompt": prompt, "response": text} for prompt in prompts for text in responses]
    as_message = [{"role": "assistant", "content": rows[4]["response"]}]
    return [*rows[:4], {**rows[4], "response": as_message}, *rows[5:]]


def test_rollouts_of_a_run_are_scored_and_compared(tiny_model, rows, tmp_path):
    write_jsonl(tmp_path / "20.jsonl", rows)
    given = {"output": tmp_path / "x", "rollouts": tmp_path / "20.jsonl"}
    result = xray(LENGTHS, (), 1, overrides=small_xray(tiny_model), **given)
    assert result.to_dict()["arms"]["length_norm_constant"][0]["cosine_mean"] < 1
    stored = RolloutFolder(tmp_path / "x" / "rollouts" / "base").batch(0)
    assert stored is not None
    assert stored.lengths_N.tolist() == [2, 2, 3, 12] * 4
    assert [ids[-1] for ids in stored.completion_ids[:2]] == [1, 27]  # <|end|> and "7"
    assert stored.rewards_NF[:4, 0].tolist() == [0, 0.5, 0, 0]
    write_jsonl(tmp_path / "20.jsonl", rows[::-1])  # a later run of the same name
    assert "were drawn with recorded" in refused(small_xray(tiny_model), LENGTHS, **given)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:12], "has 12 rollouts, and 1 rollout batches take 16"),
        (lambda rows: rows[1:] + rows[:1], "has no whole groups of 4"),
        (lambda rows: [{**row, "prompt": "1+1="} for row in rows], "does not ask"),
    ],
)
def test_rollouts_of_a_run_that_do_not_do(tiny_model, rows, tmp_path, change, why):
    write_jsonl(tmp_path / "20.jsonl", change(rows))
    assert why in refused(small_xray(tiny_model), LENGTHS, rollouts=tmp_path / "20.jsonl")
