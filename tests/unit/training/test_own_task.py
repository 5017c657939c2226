"""Reward models and chat templates that a recipe names, and the styles of a world's answers."""

import json
from collections import defaultdict
from statistics import fmean

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.miniature.worlds.chains import ANSWERED
from trl_ablate.rewards import grader_of
from trl_ablate.training import building
from trl_ablate.training.checking import check_recipe
from trl_ablate.training.models import load_tokenizer
from trl_ablate.training.rewards import (
    rewards_of_sets,
    style_values,
    task_rewards,
    with_styles_logged,
)


@pytest.fixture
def judge(tokenizer, tmp_path):
    """Folder of a reward model of one layer with random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_labels=1, dtype="float32",
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


def resolved(tiny_model, **settings):
    return load_recipe("grpo", "miniature", {"model_name_or_path": tiny_model, **settings})


def test_a_reward_model_grades_as_in_trl(make_trainer, tiny_model, tokenizer, judge):
    recipe = resolved(tiny_model, reward_funcs=[{"path": f"{judge}/", "weight": 0.5}])
    rewards = task_rewards(recipe.task, tokenizer, None, recipe)  # pyright: ignore
    assert rewards.weights == [0.5] and isinstance(rewards.functions[0], torch.nn.Module)
    histories = []
    for reward in (rewards.functions, [str(judge)]):
        trainer = make_trainer(reward=reward, max_steps=1)
        trainer.train()
        assert trainer.reward_func_names == ["judge"]
        histories.append(trainer.state.log_history[0])
    ours, theirs = (history["rewards/judge/mean"] for history in histories)
    assert ours == pytest.approx(theirs, abs=1e-6) and ours != 0


def test_a_reward_model_that_is_not_there_is_refused_in_one_sentence(
    tiny_model, tokenizer, tmp_path
):
    gone = f"{tmp_path}/gone"
    recipe = resolved(tiny_model, reward_funcs=[gone], eval_sets={"a": {"reward_funcs": [gone]}})
    said = "^reward model .*gone could not be loaded[^\n]*$"
    with pytest.raises(ConfigurationError, match=said):
        task_rewards(recipe.task, tokenizer, None, recipe)  # pyright: ignore
    with pytest.raises(ConfigurationError, match=said):
        rewards_of_sets(recipe, tokenizer, None)  # pyright: ignore


def test_a_reward_model_grades_a_set_apart(make_trainer, tiny_model, tokenizer, judge):
    """As TRL grades with it: the same completions, graded by TRL and by the set's own reward."""
    sets = {"apart": {"reward_funcs": [{"path": str(judge), "weight": 2.0}]}}
    recipe = resolved(tiny_model, reward_funcs=[str(judge)], eval_sets=sets)
    (found,) = rewards_of_sets(recipe, tokenizer, None).values()  # pyright: ignore
    trainer = make_trainer(reward=[str(judge)], num_generations_eval=2)
    trainer.eval_dataset = {"": trainer.eval_dataset, "apart": trainer.eval_dataset}
    trainer.rewards_of_sets = {"apart": found}
    metrics = trainer.evaluate()
    assert metrics["eval_apart_reward"] == 2 * metrics["eval_apart_rewards/judge/mean"] != 0
    prompts, texts = ["a b", "1+1="], ["2", "a much longer completion 1234"]
    theirs = torch.zeros(2, 1)
    with torch.inference_mode():
        for row, text in enumerate(map(str.__add__, prompts, texts)):
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
            theirs[row] = trainer.reward_funcs[0](**ids).logits[0]
    ours = found.functions[0](prompts=prompts, completions=texts)
    assert ours == pytest.approx(theirs[:, 0].tolist(), abs=1e-5) and ours[0] != ours[1]


def test_check_tries_out_a_reward_model(tiny_model, judge):
    data = {"dataset": "miniature", "train_size": 8, "eval_size": 4}
    recipe = resolved(tiny_model, reward_funcs=[str(judge)], **data)
    found = check_recipe(recipe, None, 4)  # pyright: ignore
    assert found.reward_names == ["judge"] and found.reference is not None
    assert len({*found.reference.rewards, *found.empty.rewards}) > 2


def test_check_needs_no_evaluation_set_where_none_is_evaluated(tiny_model, tmp_path):
    """As training, which reads none."""
    rows = [json.dumps({"question": f"{n}+1?", "answer": n + 1}) for n in range(9)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    recipe = resolved(tiny_model, dataset=str(tmp_path), eval_split="test", eval_strategy="no")
    with grader_of(recipe.task) as grader:
        assert check_recipe(recipe, grader, 4).sizes == {"train": 9, "eval": 0}


def test_held_out_questions_that_are_trained_on_are_counted_once(
    tiny_model, tmp_path, monkeypatch, caplog
):
    """A file is read for every split."""
    monkeypatch.setattr(building, "put_together", lambda *_: None)
    rows = [json.dumps({"question": f"{n}+1?", "answer": n + 1}) for n in range(200)]
    (tmp_path / "mine.jsonl").write_text("\n".join(rows))
    (tmp_path / "more.jsonl").write_text("\n".join([*rows[:3], *rows[2:3]]).replace("0+", "500+"))
    given = {"dataset": str(tmp_path / "mine.jsonl"), "eval_size": 50, "eval_by": None}
    sets = {"more": str(tmp_path / "more.jsonl"), "other": "miniature/sums"}
    building.build_trainer(resolved(tiny_model, **given, eval_sets=sets), None)  # pyright: ignore
    (said,) = [text for text in caplog.messages if "also trained on" in text]
    assert said.startswith("50 of 50 eval questions, 3 of 4 eval questions of 'more' are also")


def test_a_chat_template_replaces_the_tokenizers(tiny_model, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    tokenizer = load_tokenizer(tiny_model, resolved(tiny_model, chat_template=str(file)))
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "1+1?"}], tokenize=False)
    assert shown == "<user>1+1?"
    file.write_text("{% for %}")
    with pytest.raises(ConfigurationError, match="chat template .* is not a Jinja template"):
        load_tokenizer(tiny_model, resolved(tiny_model, chat_template=str(file)))
    with pytest.raises(ConfigurationError, match="no chat template .*gone.jinja"):
        load_tokenizer(tiny_model, resolved(tiny_model, chat_template="gone.jinja"))


COMPLETIONS = [
    " </think> <answer>3</answer>",
    " </think> <answer>4</answer>",
    " +1=3 </think> <answer>3</answer>",
    " 2+1=4, 4-1=3 </think> <answer>3</answer>",
    " what",
]


def right(prompts, completions, completion_ids, answer, log_metric=None, **_):
    return [
        None if text == " what" else float(gold in text)
        for text, gold in zip(completions, answer, strict=True)
    ]


def test_shares_rewards_and_lengths_of_each_style():
    found = style_values(ANSWERED, COMPLETIONS[:4], [1.0, 0.0, 1.0, None], [5, 7, 9, 20])
    assert {name: fmean(values) for name, values in found.items() if values} == {
        "style/direct": 0.5,
        "style/direct_reward": 0.5,
        "style/direct_length": 6.0,
        "style/terse": 0.25,
        "style/terse_reward": 1.0,
        "style/terse_length": 9.0,
        "style/full": 0.25,
        "style/full_length": 20.0,  # ungraded: it has no reward
    }
    found = style_values(ANSWERED, COMPLETIONS[:2], [1.0, 0.0], [5, 5])
    assert found["style/full"] == [0.0, 0.0]
    assert not found["style/full_reward"] and not found["style/full_length"]


def test_the_reward_that_marks_the_answer_logs_the_styles_and_returns_the_same_marks():
    logged = defaultdict(list)
    (reward,) = with_styles_logged([right], "miniature/chains")
    words = ([""] * 5, COMPLETIONS, [[1]] * 5, ["3"] * 5)
    marks = reward(*words, log_metric=lambda name, value: logged[name].append(value))
    assert marks == right(*words) == [1.0, 0.0, 1.0, 1.0, None]
    assert reward.__name__ == "right"
    # "what" has no equation; TRL takes the mean of the values of all processes
    assert logged["style/direct"] == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert logged["style/direct_reward"] == [1.0, 0.0]
    assert reward(*words) == marks  # without a log


def test_only_the_last_reward_before_a_penalty_logs():
    def eos_penalty(*_, **__):
        return []

    def form(*_, **__):
        return []

    rewards = with_styles_logged([form, right, eos_penalty], "miniature/chains")
    assert rewards[0] is form and rewards[2] is eos_penalty
    assert rewards[1] is not right and rewards[1].__name__ == "right"
    for dataset in ("miniature/sums", "math", "questions.jsonl"):  # without styles
        assert with_styles_logged([right], dataset) == [right]
