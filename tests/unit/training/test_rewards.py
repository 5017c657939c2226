"""Reward models that a recipe names, and the styles of a world's answers."""

from collections import defaultdict
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2ForSequenceClassification,
)

from tests.support.tiny_models import tiny_config
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.miniature.worlds.chains import ANSWERED
from trl_ablate.training.checking import check_recipe
from trl_ablate.training.rewards import (
    rewards_of_sets,
    style_values,
    task_rewards,
    with_styles_logged,
)


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def judge(tokenizer, tmp_path):
    """Folder of a reward model of one layer with random weights."""
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(tiny_config(tokenizer, num_labels=1))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def made(tiny_model, tokenizer, of_the_run, of_a_set):
    """The rewards of a run, and those of an evaluation set of its own."""
    sets = {"apart": {"reward_funcs": [of_a_set]}}
    given = {"model_name_or_path": tiny_model, "reward_funcs": [of_the_run], "eval_sets": sets}
    recipe = load_recipe("grpo", "miniature", given)
    rewards = task_rewards(recipe.task, tokenizer, None, recipe)  # type: ignore
    return rewards, rewards_of_sets(recipe, tokenizer, None)["apart"]  # type: ignore


def test_a_reward_model_grades_by_trl_and_apart_by_us_as_it_grades_by_hand(
    make_trainer, tiny_model, tokenizer, judge
):
    by_trl, weighed = {"path": f"{judge}/", "weight": 0.5}, {"path": str(judge), "weight": 2.0}
    rewards, apart = made(tiny_model, tokenizer, by_trl, weighed)
    assert (rewards.weights, apart.weights) == ([0.5], [2.0])
    trainer = make_trainer(reward=rewards.functions, num_generations_eval=2)
    assert trainer.reward_func_names == ["judge"]
    trainer.eval_dataset = {"": trainer.eval_dataset, "apart": trainer.eval_dataset}
    trainer.rewards_of_sets = {"apart": apart}
    metrics = trainer.evaluate()
    assert metrics["eval_apart_reward"] == 2 * metrics["eval_apart_rewards/judge/mean"] != 0
    prompts, texts = ["a b", "1+1="], ["2", "a much longer completion 1234"]
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    theirs = []
    for text in map(str.__add__, prompts, texts):
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        theirs.append(model(**ids).logits.item())
    ours = apart.functions[0](prompts=prompts, completions=texts)
    assert ours == pytest.approx(theirs, abs=1e-5) and ours[0] != ours[1]


def test_a_reward_model_that_is_not_there_is_refused_in_one_sentence(
    tiny_model, tokenizer, tmp_path
):
    gone = f"{tmp_path}/gone"
    for of_the_run, of_a_set in ((gone, "answer"), ("answer", gone)):
        said = "^reward model .*gone could not be loaded[^\n]*$"
        with pytest.raises(ConfigurationError, match=said):
            made(tiny_model, tokenizer, of_the_run, of_a_set)


def test_check_tries_out_a_reward_model(tiny_model, judge):
    given = {"model_name_or_path": tiny_model, "reward_funcs": [str(judge)]}
    recipe = load_recipe("grpo", "miniature", {**given, "train_size": 8, "eval_size": 4})
    found = check_recipe(recipe, None, 4)  # type: ignore
    assert found.reward_names == ["judge"] and found.reference is not None
    assert len({*found.reference.rewards, *found.empty.rewards}) > 2


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


def test_the_reward_that_marks_the_answer_logs_the_styles_and_returns_the_same_marks():
    logged = defaultdict(list)
    form, penalty = SimpleNamespace(__name__="form"), SimpleNamespace(__name__="eos_penalty")
    rewards: Any = [form, right, penalty]
    first, reward, last = with_styles_logged(rewards, "miniature/chains")
    assert first is form and last is penalty and reward.__name__ == "right"
    words = ([""] * 5, COMPLETIONS, [[1]] * 5, ["3"] * 5)
    marks = reward(*words, log_metric=lambda name, value: logged[name].append(value))
    assert marks == right(*words) == reward(*words) == [1.0, 0.0, 1.0, 1.0, None]
    # "what" has no equation; TRL takes the mean of the values of all processes
    assert logged["style/direct"] == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert logged["style/direct_reward"] == [1.0, 0.0]
    for dataset in ("miniature/sums", "math", "questions.jsonl"):  # without styles
        assert with_styles_logged([right], dataset) == [right]
