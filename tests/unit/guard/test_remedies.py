"""What an alert is told with: the remedy, the completions that show it, and the compute lost."""

import dataclasses
import json
import math
import re

import pandas
import pytest

from trl_ablate.cli.inspect import main
from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.remedies import PICKS, REMEDIES, evidence, kind_of, repeated, verdict
from trl_ablate.guard.replaying import replay
from trl_ablate.guard.rules import Alert
from trl_ablate.metrics import NO_VARIANCE, READ_BY
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.run.directory import RunDirectory

WELL, BAD = {"loss": 0.1, "reward": 1.0}, {"loss": 0.1, "reward": 0.2}
FLAT, LOST = {**WELL, NO_VARIANCE: 1.0}, {"loss": math.nan}
SURE = [{**WELL, "entropy": 1.0}] * 10 + [{**WELL, "entropy": 0.01}] * 10


def numbered(rows, every=1, **more):
    return [{**row, "step": every * i, **{k: f(i) for k, f in more.items()}}
            for i, row in enumerate(rows, start=1)]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "clocks", "lost"),
    [
        ([WELL] * 6 + [BAD] * 14, {}, "after step 6 (reward): 70% of 20 steps came"),
        ([WELL] * 6 + [BAD] * 4 + [WELL] + [BAD] * 9, {}, "after step 11 (reward): 45% of"),
        ([WELL] * 6 + [BAD] * 13 + [WELL], {}, None),  # it has recovered
        ([WELL] * 18 + [BAD] * 2, {}, None),  # too short for the rule
        ([WELL] * 20, {}, None),
        (SURE, {}, None),  # a policy that is sure of itself is not lost
        ([WELL] * 5 + [LOST] * 5, {}, "after step 5 (nonfinite): 50% of 10"),
        ([LOST], {"every": 0}, "after step 0 (nonfinite): 0% of 0 steps came after it"),
        ([WELL] * 5 + [BAD] * 5, {"every": 10, "seconds": lambda i: 720.0 * i},
         "after step 50 (reward): 50% of 100 steps, 1 of 2 h came"),
        ([WELL] * 5 + [BAD] * 5, {"every": 10, "step_time": lambda i: 36.0 if i > 5 else 12.0},
         "after step 50 (reward): 50% of 100 steps, 0.5 of 0.67 h came"),
        ([{**FLAT, "grad_norm": 0.0}] * 25, {}, "after step 0 (no_variance): 100% of 25"),
        ([{**FLAT, "grad_norm": 0.1}] * 25, {}, None),  # as without a baseline
    ],
)  # fmt: skip
def test_what_came_after_the_point_of_no_return_is_counted(rows, clocks, lost):
    rows = numbered(rows, **clocks)
    lines = verdict(rows, replay(rows, GuardArguments()))
    told = [line for line in lines if line.startswith("no return")]
    assert not told if lost is None else lost in told[0]


def test_every_rule_has_a_remedy_with_settings_that_exist():
    alerts = [Alert(rule, "warn", 1, 1.0, 2.0, "") for rule in READ_BY]
    longer = Alert("length", "warn", 1, 2.0, 1.0, "")
    assert [kind_of(alert) for alert in (*alerts, longer)].count("longer") == 1
    assert {*PICKS} < {kind_of(alert) for alert in (*alerts, longer)} == {*REMEDIES}
    fields = {field.name for field in dataclasses.fields(AblationConfig)}
    named = {one for one in re.findall(r"\w+_\w+", str(REMEDIES)) if one in fields}
    assert named == {"loss_type", *(next(iter(one)) for one in NAMED)}  # TRL alone has the first


NAMED = [
    {"learning_rate": 1e-5},
    {"max_grad_norm": 0.5},
    {"length_norm": "constant"},
    {"mask_truncated_completions": True},
    {"scale_rewards": "group"},
    {"epsilon_high": 0.28, "num_iterations": 2},
]
"""Settings that remedies name, each with what it needs."""


@pytest.mark.parametrize("settings", NAMED)
def test_what_a_remedy_names_is_neither_refused_nor_without_effect(settings):
    assert load_recipe("quickstart", overrides=settings).inert.keys().isdisjoint(settings)


PLANTED = [  # text, format reward, answer reward
    ("so 3 + 4 = 7 <answer> 7 </answer>", 1.0, 1.0),
    ("<answer></answer>", 1.0, 0.0),
    ("the same words", 0.0, 0.0),
    ("the same words", 0.0, 0.0),
    ("the same words", 0.0, 0.0),
    ("a b c d a b c d a b c d", 0.0, 0.0),  # 4 of its 9 windows are new
    ("", 0.0, 0.0),
    ("x" * 500, 0.0, 0.0),
]
SHOWN = {
    "format_alone": "1 of 8 have the format and no other reward: '<answer></answer>'",
    "most_frequent": "3 of 8 are the same: 'the same words'",
    "most_repetitive": "repeats itself (56%): 'a b c d a b c d a b c d'",
    "shortest": "shortest of 8 (0 letters): ''",
    "longest": f"longest of 8 (500 letters): '{'x' * 106}…{'x' * 53}'",
}


def as_ours(folder, step):
    rows = [{"response": text, "reward": f + a, "format_reward": f, "answer_reward": a,
             "advantage": 1.0, "ground_truth": 7} for text, f, a in PLANTED]  # fmt: skip
    RunDirectory(folder).write_rollouts(step, rows)


def as_messages(folder, step):
    """What TRL writes for conversations, by the same calls."""
    texts, by_format, by_answer = zip(*PLANTED, strict=True)
    columns = {
        "step": step,
        "completion": [[{"role": "assistant", "content": text}] for text in texts],
        "think_format_reward": by_format,
        "accuracy_reward": by_answer,
        "advantage": 1.0,
    }
    (folder / "completions").mkdir(exist_ok=True)
    pandas.DataFrame(columns).to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


@pytest.mark.parametrize("form", [as_ours, as_messages])
@pytest.mark.parametrize("rule", sorted(PICKS))
def test_the_completions_that_show_a_rule_are_found(tmp_path, form, rule):
    for step in (10, 20, 30):
        form(tmp_path, step)
    name = "length" if rule in ("shorter", "longer") else rule
    alert = Alert(name, "warn", 15, 1.0 if rule == "shorter" else 3.0, 2.0, "")
    expected = [f"step 20, {SHOWN[pick.__name__]}" for pick in PICKS[rule]]
    for log in (tmp_path, tmp_path / "trainer_state.json", tmp_path / "checkpoint-20" / "x.json"):
        assert list(evidence(alert, log)) == expected
    after = dataclasses.replace(alert, step=99)  # nothing was saved later: the last ones
    assert next(evidence(after, tmp_path)).startswith("step 30, ")


def test_the_command_shows_remedy_and_completions_and_refuses_damage(tmp_path, capsys):
    rows = numbered([WELL] * 5 + [{**BAD, "reward": 0.1}] * 5)
    state = {"log_history": rows}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert main([str(tmp_path)]) == 1
    assert f"try: {REMEDIES['reward']}" in capsys.readouterr().out
    as_messages(tmp_path, 8)
    assert main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"step 8, {SHOWN['most_frequent']}" in shown and "no return after step 5" in shown
    (tmp_path / "completions" / "completions_00008.parquet").write_text("x")
    with pytest.raises(ConfigurationError, match="00008.parquet cannot be read .*; delete it"):
        list(evidence(Alert("reward", "warn", 8, 1.0, 2.0, ""), tmp_path))


def test_no_completion_controls_the_terminal_or_is_shown_where_none_is_saved_or_alike(tmp_path):
    alert = Alert("entropy", "warn", 1, 1.0, 2.0, "")
    assert not list(evidence(alert, tmp_path))
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text('{"response": "a"}\n{"response": 3}\n')
    assert not list(evidence(alert, tmp_path))
    assert not list(evidence(dataclasses.replace(alert, rule="spike"), tmp_path))
    assert repeated("") == repeated("a b c d e") == 0.0 and repeated("a a a a a") == 0.5
    row = json.dumps({"response": "\x1b[2J\u202e\nrm"})
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text(row + "\n")
    (line,) = evidence(Alert("special_tokens", "warn", 1, 1.0, 0.5, ""), tmp_path)
    assert line.endswith(r"'\x1b[2J\u202e rm'")
