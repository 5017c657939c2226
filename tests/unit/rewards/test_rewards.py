"""Scores, reward functions, and their logged metrics."""

from collections import defaultdict
from statistics import fmean

import pytest

from tests.unit.rewards.test_own_rewards import logged_call
from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards import MathGrader, build_rewards, score
from trl_ablate.rewards.functions import abuses_eos
from trl_ablate.rewards.grading.latex import last_boxed
from trl_ablate.rewards.own.calling import Calls, guarded


class ListedGrader(MathGrader):
    """Compares texts, cannot grade "hang", and counts the batches."""

    batches = 0

    def grade(self, answers, golds):
        self.batches += 1
        self.timeouts += answers.count("hang")
        self.ungraded += answers.count("hang")
        pairs = zip(answers, golds, strict=True)
        return [None if answer == "hang" else answer == gold for answer, gold in pairs]


ALL, FORMAT_ONLY, NOTHING = (1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0)
"""Reward, format reward, answer reward."""
BOTH, UNFORMATTED = (3.0, 1.0, 2.0), (2.0, 0.0, 2.0)
"""In XML the answer counts without the format, and the format without the answer (1)."""

SCORES = {
    "r1_zero": {
        ALL: [
            "2+3 is 5 </think> <answer> 5 </answer>", "</think> <answer>5</answer>",
            r"so </think> <answer> \boxed{5} </answer>",
            r"so </think> <answer> It is $\boxed{5}$. </answer>",
            "line\nline </think> <answer>\n5\n</answer>\nUser: next?",
        ],
        FORMAT_ONLY: [
            "so </think> <answer> 6 </answer>", "so </think> <answer> </answer>",
            r"so </think> <answer> \boxed{5 </answer>",
        ],
        NOTHING: [
            "so </think> <answer> 5", "so <answer> 5 </answer>", "so </think><answer> 5 </answer>",
            "so </think> then <answer> 5 </answer>", "<answer> 5 </answer> so </think>",
            "</answer> so </think> <answer> 5", "a </think> b </think> <answer> 5 </answer>",
            "so </think>\n<answer> 5 </answer>", "a </think> <answer> 5 </answer> </answer>",
            "a </think> <answer> 6 </answer> <answer> 5 </answer>",
            "</think> <answer> 6 </think> <answer> 5 </answer>", "5", "",
        ],
    },
    "question_only": {
        ALL: [
            r"so it is $\boxed{5}$.", r"first \boxed{6}, no: \boxed{5}", r"\fbox{5}",
            r"\\boxed{5} and then a cut-off \boxed{6",
        ],
        FORMAT_ONLY: [r"first \boxed{5}, no: \boxed{6}", r"\boxed{}"],
        NOTHING: [r"\boxed{5", r"\boxed 5", "5", ""],
    },
    "last_number": {
        ALL: ["5", r"first 6, no: 2 + 3 = \boxed{5}.", "$5.00", "so 7-5", "10-$5", "so 1.5.5"],
        FORMAT_ONLY: ["so \u22125", "so .5", "so 5, and 6 more", "-5", "it is -$5", "1,005",
                      r"\boxed{1{,}005}", r"1,\!005"],
        NOTHING: ["five", ""],
    },
    "think_xml": {
        BOTH: [
            "<think>2+3</think>\n<answer>5</answer>", "<think></think>\n<answer>5</answer>\n",
            "<think>\n2+3\nis 5\n</think>\n<answer>\n5\n</answer>",
            "<think>a</think>\n<answer>\\boxed{5}</answer>",
        ],
        (1.0, 1.0, 0.0): [
            "<think>a</think>\n<answer>6</answer>", "<think>a</think>\n<answer></answer>",
        ],
        UNFORMATTED: [
            "<answer>5</answer>", "<reasoning>a</reasoning>\n<answer>5</answer>",
            "<think>a</think> <answer>5</answer>", "So: <think>a</think>\n<answer>5</answer>",
            "<think>a</think>\n<answer>5</answer> that is it",
            "<think>a</think>\n<answer>6</answer><answer>5</answer>",
        ],
        NOTHING: [
            "<think>a</think>\n<answer>5</answer><answer>6</answer>",
            "<think>a</think>\n<answer>5", "</answer>5<answer>", "5", "",
        ],
    },
    "reasoning_xml": {
        BOTH: ["<reasoning>2+3\n</reasoning>\n<answer>5</answer>"],
        UNFORMATTED: ["<think>2+3</think>\n<answer>5</answer>"],
    },
}  # fmt: skip


@pytest.mark.parametrize("template", SCORES)
def test_scores(template):
    for parts, completions in SCORES[template].items():
        wanted = dict(zip(("reward", "format_reward", "answer_reward"), parts, strict=True))
        for completion in completions:
            assert score(template, completion, "5") == wanted, completion


def test_last_boxed():
    for content in (r"\frac{1}{2}", r"\{1, 2\}", r"[0, 1\}"):
        assert last_boxed(rf"\boxed{{{content}}}") == content
    for text in (r"\boxed {5}", r"\boxed{\boxed{5}}", r"{ \boxed{5} and {", r"\boxed{5}" * 20_000):
        assert last_boxed(text) == "5"
    assert last_boxed(r"\boxed{" * 20_000) is last_boxed("\\" * 100_000) is None


def test_ungraded_is_none_and_never_zero():
    loose = "<answer>hang</answer>"
    for template, completion, form in (("r1_zero", r1("hang"), 1.0), ("think_xml", loose, 0.0)):
        result = score(template, completion, "5", grader=ListedGrader())
        assert result == {"reward": None, "format_reward": form, "answer_reward": None}
    with pytest.raises(ConfigurationError, match="'r1'"):
        score("r1", "5", "5")


def call(function, completions, gold="5", **given):
    """The marks, the logged metrics and the logged columns."""
    return logged_call(function, completions, answer=[gold] * len(completions), **given)


def r1(answer: str) -> str:
    return f"so </think> <answer>{answer}</answer>"


def test_r1_zero_reward_function_and_its_log():
    (function,), weights = build_rewards("r1_zero", grader=ListedGrader())
    assert (function.__name__, weights) == ("r1_zero", [1.0])
    marks, metrics, columns = call(function, [r1("5"), r1("6"), r1("hang"), "no"])
    assert marks == [1.0, 0.0, None, 0.0]
    assert metrics == {
        "format_reward": 2 / 3,  # of the three graded ones
        "answer_reward": 1 / 3,
        "grader/timeouts": 1.0,
        "grader/restarts": 0.0,
        "grader/ungraded": 1.0,
    }
    assert columns == {
        "format_reward": [1.0, 1.0, 1.0, 0.0],
        "answer_reward": [1.0, 0.0, None, 0.0],
    }
    marks, metrics, _ = call(function, [r1("hang")])
    assert marks == [None] and "answer_reward" not in metrics  # no mean of nothing
    _, metrics, _ = call(function, [r1("5")])
    assert metrics["grader/timeouts"] == 0.0  # of the batch, not of the run


def test_metrics_of_several_processes_are_those_of_all_their_completions(monkeypatch):
    """One of five graded completions is right; 1 + 2 are ungraded. TRL takes means over all values
    of the processes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    logged = defaultdict(list)
    none = guarded(Calls("none", lambda completions, **_: [None] * len(completions)))
    for texts in ([r1("5"), r1("hang")], [r1("6")] * 4 + [r1("hang")] * 2):
        functions, _ = build_rewards("r1_zero", grader=ListedGrader())
        for function in (*functions, none):
            call(function, texts, log_metric=lambda name, value: logged[name].append(value))
    names = ("answer_reward", "format_reward", "grader/ungraded", "grader/none/ungraded")
    assert [fmean(logged[name]) for name in names] == [0.2, 1.0, 3.0, 8.0]


def test_xml_reward_functions_grade_a_batch_once():
    grader = ListedGrader()
    functions, weights = build_rewards("think_xml", grader=grader)
    assert [function.__name__ for function in functions] == ["format", "answer"]
    assert weights == [1.0, 2.0]
    formatted = [f"<think>a</think>\n<answer>{answer}</answer>" for answer in ("5", "6", "hang")]
    completions = [*formatted, "<answer>5</answer>"]
    (format_marks, metrics, columns), (answer_marks, *logged) = (
        call(function, completions) for function in functions
    )
    assert format_marks == [1.0, 1.0, None, 0.0]
    assert answer_marks == [1.0, 0.0, None, 1.0]
    assert metrics["answer_reward"] == 4 / 3 and logged == [{}, {}]
    assert columns["answer_reward"] == [2.0, 0.0, None, 2.0]
    assert grader.batches == 1
    call(functions[0], completions[:1])
    assert grader.batches == 2


def test_conversational_completions():
    functions, _ = build_rewards("question_only", grader=ListedGrader())
    completions = [
        r"\boxed{5}",
        [{"role": "assistant", "content": r"\boxed{5}"}],
        [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{5}"}]}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": ""}, {"role": "tool", "content": r"\boxed{5}"}],
        [],
    ]
    assert call(functions[0], completions)[0] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


EOS, TURN, PAD, WORD = 1, 2, 3, 50


def test_abuse_of_the_end_of_sequence_token():
    twice = [[WORD, EOS, EOS], [WORD, TURN, EOS], [EOS, WORD, EOS]]
    for ids in (*twice, [EOS], [PAD, PAD], []):
        assert abuses_eos(ids, {EOS, TURN}, {PAD}), ids
    for ids in ([WORD, WORD, EOS], [WORD, TURN], [WORD, WORD], [PAD, WORD, EOS]):
        assert not abuses_eos(ids, {EOS, TURN}, {PAD}), ids


def test_eos_penalty():
    given = {"eos_token_ids": [EOS], "special_token_ids": [PAD], "eos_penalty": 0.5}
    grader = ListedGrader()
    functions, weights = build_rewards("r1_zero", grader=grader, **given)
    assert [function.__name__ for function in functions] == ["r1_zero", "eos_penalty"]
    assert weights == [1.0, 0.5]
    ids = [[WORD, EOS], [WORD, EOS, EOS], [PAD, PAD], [EOS, EOS]]
    marks, *_ = call(functions[1], [r1(one) for one in ("5", "5", "5", "hang")], completion_ids=ids)
    # The ungraded completion gets None: with a number, its reward would no longer be ungraded.
    assert marks == [0.0, -1.0, -1.0, None]
    for wrong in ({"eos_penalty": 0.5}, {"eos_token_ids": [1], "eos_penalty": -1.0}):
        with pytest.raises(ConfigurationError, match=r"eos_penalty=.* needs eos_token_ids; give 0"):
            build_rewards("r1_zero", grader=grader, **wrong)
