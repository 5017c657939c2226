"""Rewards that a recipe names: which functions they are, how they are called, how they fail."""

import asyncio
import inspect
import json
import logging
import math
import os
import pickle
import sys
from collections import defaultdict
from dataclasses import asdict
from statistics import fmean

import numpy as np
import pytest
import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from trl_ablate.errors import ConfigurationError, RewardError
from trl_ablate.reward_specs import reward_specs
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.grading.pool import WorkerPool
from trl_ablate.rewards.own.calling import Calls, guarded, in_this_process
from trl_ablate.rewards.own.chosen import Tools, chosen_rewards

FILE = """
import asyncio, ctypes, os, time

async def slow_lengths(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [float(len(text)) for text in completions]

def lengths(completions, scale=1.0, **kwargs):
    return [scale * len(text) for text in completions]

def of_columns(completions, level, answer):
    return [float(f"{level[i]}{answer[i]}") for i in range(len(completions))]

def of_state(completions, trainer_state):
    return [0.0] * len(completions)

def picky(completions, answer, **kwargs):
    return [1.0 / int(answer[i]) for i in range(len(completions))]

def hangs(completions, **kwargs):
    (text,) = completions
    while text == "hang":
        pass
    if text == "exits":
        os._exit(1)
    if text in ("memory", "dies"):
        ctypes.CDLL(None)._exit(3 if text == "memory" else 1)
    if text == "raises":
        raise ValueError("no")
    return [None if text == "none" else len(text)]

class Judge:
    def __init__(self, worth):
        self.worth = float(worth)

    def __call__(self, completions, **kwargs):
        return [self.worth] * len(completions)

number = 3
fold = str.casefold  # a method, which has no module
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(FILE)
    return str(path)


def chosen(*entries, form="r1_zero", **given):
    return chosen_rewards(reward_specs(entries), Tools(MathGrader(1), form, str, **given))


def logged_call(function, completions, **columns):
    """The rewards, the logged metrics (means over all values, as in TRL) and the logged columns."""
    values, extra = defaultdict(list), {}
    given = {
        "prompts": ["?"] * len(completions),
        "completions": completions,
        "completion_ids": [[1]] * len(completions),
        "trainer_state": None,
        "log_metric": lambda name, value: values[name].append(value),
        "log_extra": extra.__setitem__,
        **columns,
    }
    result = function(**given)
    result = asyncio.run(result) if inspect.isawaitable(result) else result
    return result, {name: fmean(each) for name, each in values.items()}, extra


def call(function, completions, **columns):
    return logged_call(function, completions, **columns)[0]


def test_a_function_of_a_file_gets_the_columns_that_it_names(file):
    rewards = chosen(f"{file}:of_columns")
    (function,) = rewards.functions
    assert rewards.needs == {"of_columns": ["level", "answer"]}
    columns = {"level": [1, 2], "answer": ["5", "6"], "unused": ["x", "y"]}
    assert call(function, ["a", "b"], **columns) == [15.0, 26.0]
    with pytest.raises(ConfigurationError, match="'of_columns' needs the column 'level'.*question"):
        rewards.check_columns(["question", "answer"], "train questions")
    rewards.check_columns(["level", "answer"], "train questions")


def test_arguments_weights_and_names_come_from_the_recipe_and_async_stays_async(file):
    rewards = chosen(
        {"path": f"{file}:lengths", "weight": 0.5, "kwargs": {"scale": 3.0}},
        {"path": f"{file}:lengths", "name": "plain"},
        {"path": f"{file}:Judge", "kwargs": {"worth": 0.25}},
        f"{file}:slow_lengths",
    )
    names = ["lengths", "plain", "Judge", "slow_lengths"]
    assert rewards.weights == [0.5, 1.0, 1.0, 1.0]
    assert [get_callable_name(one) for one in rewards.functions] == names
    assert [call(one, ["ab"]) for one in rewards.functions] == [[6.0], [2.0], [0.25], [2.0]]
    assert is_async_callable(rewards.functions[3])


def test_the_rewards_of_trl_read_completions_of_text_and_of_messages():
    solution = {"solution": ["$1$"] * 2}
    for path, right, columns in (
        ("trl.rewards.accuracy_reward", r"\boxed{1}", solution),
        ("reasoning_accuracy_reward", r"</think> \boxed{1}", solution),
        ("think_format_reward", "<think>a</think>b", {}),
    ):
        rewards, texts = chosen(path), [right, r"</think> \boxed{2}"]
        assert list(rewards.needs.values()) == [list(columns)]
        messages = [[{"role": "assistant", "content": text}] for text in texts]
        for completions in (texts, messages):
            assert call(rewards.functions[0], completions, **columns) == [1.0, 0.0]
    kwargs = {"max_completion_len": 4, "soft_punish_cache": 2}
    (overlong,) = chosen({"path": "get_soft_overlong_punishment", "kwargs": kwargs}).functions
    ids = [[7] * 2, [7] * 3, [7] * 5]
    # 4 tokens, 2 of them soft: 0 up to 2 tokens, (4 - 2 - 3) / 2 at 3, -1 above 4
    assert overlong(prompts=[""] * 3, completions=[""] * 3, completion_ids=ids) == [0, -0.5, -1]


def test_built_in_parts_share_one_grading(file):
    rewards = chosen("format", {"path": "answer", "name": "right"}, f"{file}:lengths")
    texts = ["so </think> <answer>5</answer>", "</think> <answer>6</answer>", "5"]
    both = [logged_call(one, texts, answer=["5"] * 3) for one in rewards.functions[:2]]
    assert [found for found, *_ in both] == [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert both[0][1]["grader/ungraded"] == 0.0 and both[1][1] == {}
    assert rewards.needs == {"format": ["answer"], "right": ["answer"], "lengths": []}
    (penalty,) = chosen({"path": "eos_penalty", "weight": 2.0}, eos_token_ids=[0]).functions
    assert call(penalty, ["a", "b"], completion_ids=[[1, 0], [0, 0]]) == [0.0, -1.0]  # no answers


def test_a_row_that_raises_is_ungraded_and_counted(file, caplog):
    (function,) = chosen(f"{file}:picky").functions
    with caplog.at_level(logging.WARNING):
        rewards, metrics, _ = logged_call(function, ["a", "b", "c"], answer=["2", "0", "4"])
    assert rewards == [0.5, None, 0.25]
    assert metrics == {"grader/picky/ungraded": 1.0, "grader/picky/errors": 1.0}
    for part in ("'picky' failed on 1 of 3 rows", "ZeroDivisionError", "line 18 of", "py) on 'b'"):
        assert part in caplog.text
    caplog.clear()
    call(function, ["a", "b"], answer=["0", "1"])
    assert not caplog.text  # once in a run

    async def parts(completions, **kwargs):
        return [1.0 / len(text) for text in completions]

    assert call(guarded(Calls("mine", parts)), ["ab", ""]) == [0.5, None]


def test_none_and_nan_are_ungraded_and_arrays_and_tensors_are_lists_of_numbers():
    function = guarded(Calls("mine", lambda completions, **_: [None, math.nan, 0.0]))
    rewards, metrics, _ = logged_call(function, ["a", "b", "c"])
    assert rewards == [None, None, 0.0]
    assert metrics == {"grader/mine/ungraded": 2.0, "grader/mine/errors": 0.0}
    for made in (np.array([1, 2]), torch.tensor([1.0, 2.0]), (True, np.float32(2))):
        function = guarded(Calls("mine", lambda completions, made=made, **_: made))
        assert call(function, ["a", "b"]) == [1.0, 2.0]


def test_a_call_that_fails_where_none_of_its_rows_does_is_counted(caplog):
    """Such as a service that was away for a moment; the function empties its lists, too."""
    sizes = []

    def above_mean(completions, **kwargs):
        lengths = [len(text) for text in completions]
        completions.clear()
        sizes.append(len(lengths))
        if len(sizes) == 2:
            raise ConnectionError("away")
        return [length - fmean(lengths) for length in lengths]

    function = guarded(Calls("mine", above_mean))
    calls = [logged_call(function, ["a", "bcd"]) for _ in range(3)]
    assert [rewards for rewards, _, _ in calls] == [[-1.0, 1.0], [0.0, 0.0], [-1.0, 1.0]]
    assert [metrics["grader/mine/errors"] for _, metrics, _ in calls] == [0.0, 1.0, 0.0]
    assert sizes == [2, 2, 1, 1, 2] and caplog.text.count("ConnectionError: away") == 1


def test_what_is_logged_for_a_row_alone_is_dropped():
    def function(completions, log_metric, environments, **kwargs):
        if "bad" in completions:
            raise ValueError("bad")
        log_metric("mine", 1.0)
        return [float(environments[0])] * len(completions)

    both = guarded(Calls("mine", function))
    rewards, metrics, _ = logged_call(both, ["good", "bad"], environments=[3, 4])
    assert rewards == [3.0, None] and "mine" not in metrics
    assert logged_call(both, ["good"], environments=[3])[1]["mine"] == 1.0


def raises(completions, **kwargs):
    raise ValueError("solution \x1b[2J")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (raises, "'mine' failed on all 2 rows of a call, first with ValueError: solution .x1b.*"),
        (lambda completions, **_: [1.0], "'mine' returned 1 rewards for 2 completions.*'a'"),
        (lambda completions, **_: 0.5, "'mine' returned 0.5, a float; return a list"),
        (lambda completions, **_: ["1", 0.0], "'mine' returned '1' for 'a'"),
        (lambda completions, **_: [0.0, math.inf], "'mine' returned inf for 'b'"),
        (lambda completions, **_: [0.0, 1e39], r"'mine' returned 1e\+39 for 'b'"),
        (lambda completions, **_: [0.0, 10**400], "'mine' returned 10{9}.* for 'b'"),
        (lambda completions, **_: [0.0, [1]], r"'mine' returned \[1\] for 'b'"),
        (lambda completions, **_: "ab", "'mine' returned 'ab', a str"),
    ],
)
def test_an_error_of_the_function_ends_the_run_in_one_sentence(function, sentence):
    with pytest.raises(RewardError, match=sentence) as raised:
        call(guarded(Calls("mine", function)), ["a", "b"])
    assert str(raised.value).isprintable()


def test_workers_grade_like_the_function_itself(file):
    # the key is longer than a command line may be, which would show it to other users, too
    spec = {"path": f"{file}:lengths", "kwargs": {"scale": 2.0, "api_key": "k" * 140_000}}
    (plain,), (worked,) = (chosen(spec, timeout=each).functions for each in (None, 30.0))
    texts = ["", "a" * 70_000, "é"]  # the second does not fit into a pipe
    assert call(worked, texts) == call(plain, texts)
    assert worked.__name__ == "lengths"


@pytest.mark.slow
def test_a_hanging_row_is_killed_and_the_others_are_graded(file):
    (function,) = chosen(f"{file}:hangs", workers=2, timeout=2.0).functions
    rewards, metrics, _ = logged_call(function, ["abc", "hang", "none", "raises", "exits", "ab"])
    assert rewards == [3.0, None, None, None, None, 2.0]
    counts = {"ungraded": 4.0, "errors": 2.0, "timeouts": 1.0}
    assert metrics == {f"grader/hangs/{name}": count for name, count in counts.items()}


def test_memory_that_earlier_requests_have_used_up_is_retried_in_another_fork(file):
    """`hangs` ends its fork as running out of memory does."""
    (spec,) = reward_specs([f"{file}:hangs"])
    pool = WorkerPool(1, 30.0, -1, 60.0, {"reward": asdict(spec), "path": sys.path})

    def run(*texts):
        rows = [pickle.dumps({"completions": [text]}) for text in texts]
        outcomes = pool.run([(row,) for row in rows])
        return [outcome.verdict for outcome in outcomes], pool.restarts

    assert run("memory") == ([None], 1)
    assert run("ab", "memory", "abc") == ([{"reward": 2.0}, None, {"reward": 3.0}], 3)
    assert run("dies") == ([None], 6)
    pool.close()


def test_workers_report_what_is_wrong_with_the_function(file):
    (function,) = chosen(f"{file}:hangs", workers=1, timeout=30.0).functions
    with pytest.raises(RewardError, match="failed on all 1 rows.*ValueError: no"):
        call(function, ["raises"])
    (function,) = chosen(f"{file}:of_columns", workers=1, timeout=30.0).functions
    with pytest.raises(RewardError, match="returned inf for 'a'"):
        call(function, ["a"], level=["1e"], answer=["999"])


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([], "is an empty list"),
        (["anwser"], "'anwser' is no reward; did you mean 'answer'"),
        (["reward.py"], "'reward.py' names no function of the file; write FILE.py:FUNCTION"),
        ([{"path": "answer", "wieght": 1}], "unknown key 'wieght'; use path, weight"),
        ([{"path": "answer", "weight": math.inf}], "weight of 'answer' is 'inf'; give a number"),
        ([{"weight": 1}], "path is None; give one of answer"),
        ([{"path": "answer", "kwargs": {"a": 1}}], "'answer' takes no kwargs, but has 'a'"),
        (["answer", "answer"], "two rewards named 'answer'"),
        (["a/rm", "b/judge", "b/rm/"], "two rewards named 'rm'"),  # as TRL would name the models
        ([{"path": "a/rm", "name": "b"}], "'a/rm' is a reward model, which TRL names by its path"),
        ([{"path": "answer", "name": "a\x1b[2J"}], "'answer' is 'a.x1b.*without control char"),
        (["/nowhere/reward.py:score"], "no file /nowhere/reward.py"),
        (["FOLDER/reward.py:number"], "is a int, which cannot be called"),
        (["builtins.max"], "builtins.max does not say which arguments it takes"),
        (["FOLDER/reward.py:lenghts"], "has no 'lenghts'; it has .*did you mean 'lengths'"),
        (["FOLDER/reward.py:Judge"], "cannot be made with kwargs"),
        ([{"path": "FOLDER/reward.py:Judge", "kwargs": {"worth": "x"}}], "'x'}: ValueError: could"),
        (["FOLDER/broken.py:f"], "broken.py cannot be imported: NameError.*line 2 of broken.py"),
        (["FOLDER/exits.py:f"], "exits.py cannot be imported: SystemExit: 3 .line 1 of exits.py"),
        ([{"path": "answer", "kwargs": 3}], "kwargs of 'answer' are '3'; give a mapping"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_sentence(file, tmp_path, entries, sentence):
    (tmp_path / "broken.py").write_text("import os\nprnt(1)\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    placed = json.loads(json.dumps(entries).replace("FOLDER", str(tmp_path)))
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        chosen(*placed)
    assert "\n" not in str(raised.value)


def test_of_two_async_functions_the_first_may_end_first():
    """What ends this process is as before, and not one layer deeper after each step."""
    both, before = [in_this_process(name, None) for name in ("first", "second")], os._exit
    for one in both:
        one.__enter__()
    for one in both:
        assert os._exit is not before
        one.__exit__(None, None, None)
    assert os._exit is before


def test_what_cannot_be_passed_to_workers_is_refused(file):
    with pytest.raises(ConfigurationError, match="needs trainer_state, which cannot be passed"):
        chosen(f"{file}:of_state", timeout=1.0)
    (function,) = chosen(f"{file}:lengths", timeout=1.0).functions
    with pytest.raises(ConfigurationError, match="a row cannot be passed to a worker process"):
        call(function, ["a"], level=[lambda: 1])
