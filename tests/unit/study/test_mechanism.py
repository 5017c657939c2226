"""The picture of a world's styles over a training, from planted rows."""

import json

import pytest

from trl_ablate.cli import mechanism
from trl_ablate.study.report import answer_styles
from trl_ablate.study.report.answer_styles import draw_mechanism, styles_of, trajectory, with_styles


def row(step: int, short: float, **more: float) -> dict[str, float]:
    """`short` of the answers are right in 0.1 with 5 tokens, the others in 0.8 with 30."""
    return {
        "step": step, "grpo_step": float(step),
        "style/terse": 1 - short, "style/terse_length": 30.0, "style/terse_reward": 0.8,
        "style/direct": short, "style/direct_length": 5.0, "style/direct_reward": 0.1,
        **{f"advantages/weight/q{quarter}": 0.25 for quarter in range(1, 5)}, **more,
    }  # fmt: skip


ROWS = [row(step, short=0.5) for step in range(1, 13)]


def test_a_point_is_the_mean_of_six_steps_by_the_number_of_answers():
    # lengths 10 and 20 with shares 0.1 and 0.3: (1 + 6) / 0.4 = 17.5; rewards 0 and 1: 0.3 / 0.4
    rows = [
        row(1, 0.1, **{"style/direct_length": 10.0, "style/direct_reward": 0.0}),
        row(2, 0.3, **{"style/direct_length": 20.0, "style/direct_reward": 1.0}),
    ]
    assert trajectory(rows, "direct") == [pytest.approx((17.5, 0.75))]
    assert trajectory(ROWS, "terse") == [pytest.approx((30.0, 0.8))] * 2
    assert trajectory([row(1, 0.001)], "direct") == []  # a style that has vanished
    assert styles_of(ROWS) == ["direct", "terse"]  # the shortest first
    assert with_styles(ROWS) is ROWS
    bare = [{"grpo_step": 1.0, "completions/mean_length": 20.0, "reward": 2.5}, {"eval_reward": 1}]
    assert trajectory(with_styles(bare), "all answers") == [(20.0, 2.5)]
    assert draw_mechanism({"$_$": bare}).startswith(b"\x89PNG")


def test_runs_share_an_axis_on_which_all_rewards_are_seen(monkeypatch):
    figures = []
    monkeypatch.setattr(answer_styles, "png_of", figures.append)
    high, low = ([row(1, 0.5, **{"style/terse_reward": end})] for end in (3.0, -2.0))
    draw_mechanism({"high": high, "low": low, "usual": ROWS})
    assert figures[0].axes[3].get_ylim() == pytest.approx((-2.1, 3.15))


def runs_in(folder, monkeypatch, **rows_of):
    monkeypatch.chdir(folder)
    for name, rows in rows_of.items():
        (folder / name).mkdir(parents=True)
        text = "".join(json.dumps(one) + "\n" for one in rows)
        (folder / name / "metrics.jsonl").write_text(text)


def test_the_command_draws_runs_and_refuses_those_without_answers(tmp_path, monkeypatch, capsys):
    bare = [{"step": 1, "grpo_step": 1.0, "reward": 0.5}]
    runs_in(tmp_path, monkeypatch, one=ROWS, two=ROWS, bare=bare)
    assert mechanism.main(["a title=one", "two", "--out", "drawn.png"]) == 0
    drawn = (tmp_path / "drawn.png").read_bytes()
    assert drawn == draw_mechanism({"a title": ROWS, "two": ROWS})
    changed = [{**one, "advantages/weight/q4": 0.9} for one in ROWS]
    assert drawn != draw_mechanism({"a title": ROWS, "two": changed})
    assert mechanism.main(["bare"]) == mechanism.main(["none"]) == 2
    assert "run bare logged no rewards of answers; give runs that" in capsys.readouterr().err
    assert mechanism.main(["one", "--out", "drawn.pdf"]) == 2
    assert "--out drawn.pdf is a PNG; call it drawn.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (["a/x-s0", "b/x-s0", "b/lr=1-s0"], ["a/x-s0", "b/x-s0", "lr=1-s0"]),
        (["t=a/x-s0", "t=b/x-s0"], ["a/x-s0", "b/x-s0"]),
        (["lr=1=b/lr=1-s0", "x-s0=a/x-s0"], ["lr=1", "x-s0"]),
        (["b/x-s0/.."], ["b"]),
    ],
)
def test_every_run_has_a_title_of_its_own(tmp_path, monkeypatch, words, titles):
    names = ("b", "a/x-s0", "b/x-s0", "b/lr=1-s0")
    runs_in(tmp_path, monkeypatch, **dict.fromkeys(names, [{"step": 1}]))
    drawn = []
    monkeypatch.setattr(answer_styles, "draw_mechanism", lambda rows: drawn.extend(rows) or b"")
    assert mechanism.main(words) == 0
    assert drawn == titles
