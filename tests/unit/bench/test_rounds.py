"""Every mode of the bench alternates, and reports medians and spreads."""

from trl_ablate.bench import reward_time, scale_time, step_time
from trl_ablate.bench.modes import Grading, Scale, Step
from trl_ablate.bench.timing import Measured, alternate, compared, ratio


def test_a_comparison_has_medians_spreads_and_ratios_of_pairs():
    """So that a passing load does not show: another program ran during the third pair."""
    ours, theirs = [1.0, 1.1, 4.0, 1.0], [2.0, 2.2, 8.0, 2.0]
    assert ratio(theirs, ours) == 2
    row = compared("ours", "s", Measured(ours, [3.0] * 4), Measured(theirs, [9.0] * 4))
    assert row == {
        "what": "ours", "s": 1.05, "spread": 3.0, "ratio": 2, "CPU s": 3.0, "CPU ratio": 3.0,
    }  # fmt: skip


def test_ways_alternate_and_their_warm_up_is_not_timed():
    calls = []
    ways = {name: lambda number, name=name: calls.append((name, number)) or number for name in "ab"}
    found = alternate(ways, rounds=2, warmup=1)
    assert calls == [(name, number) for number in range(3) for name in "ab"]
    for one in found.values():
        assert len(one.seconds) == len(one.cpu) == 2 and one.returned == [0, 1, 2]


def test_whole_steps_alternate_from_the_same_weights(monkeypatch):
    built, load = [], Step(rounds=3)

    def measure(stock, into):
        into.seconds += [2.0, 4.0] if stock else [1.0, 1.0]
        into.cpu += [3.0, 3.0] if stock else [2.0, 2.0]
        into.logs.append({"completions/mean_length": 8.0})

    def build(stock, model, rewards, load):
        built.append((stock, model))
        return stock

    monkeypatch.setattr(step_time, "_build", build)
    monkeypatch.setattr(step_time, "measure", measure)
    monkeypatch.setattr(step_time.torch.cuda, "is_available", lambda: False)
    found = step_time.compare("folder", load)
    stock, ours = (step_time._row(name, one, found["stock TRL"]) for name, one in found.items())
    assert built == 3 * [(True, "folder"), (False, "folder")]
    assert (stock["s/step"], stock["spread"], stock["ratio"]) == (3.0, 2.0, 1.0)
    assert (ours["s/step"], ours["spread"], ours["ratio"]) == (1.0, 0.0, 3.0)
    assert (stock["CPU s"], ours["CPU s"], ours["CPU ratio"]) == (3.0, 2.0, 1.5)


def test_every_round_of_scale_measures_all_points(monkeypatch):
    asked = []

    def measured(rows, mean_length, processes, steps):
        asked.append((rows, mean_length, processes))
        return {"s/step": float(len(asked)), "tokens/s": 1e6, "peak GiB": 10.0 * len(asked)}

    monkeypatch.setattr(scale_time, "_measured", measured)
    asked_for = Scale(rows=[8, 16], mean_lengths=[32.0], processes=[1], steps=1, rounds=3)
    _, (first, second), _ = scale_time.bench(asked_for)
    assert asked == 3 * [(8, 32.0, 1), (16, 32.0, 1)]
    assert first == {
        "what": "8 rollouts of 32 tokens, 1 process(es)",
        "s/step": 3.0, "spread": 4.0, "µs/token": 1.0, "peak GiB": 50.0,
    }  # fmt: skip
    assert second["s/step"] == 4.0


def test_grading_has_a_spread_without_its_warm_up():
    _, rows, facts = reward_time.bench(Grading(count=8, rounds=2, workers=1))
    assert [row["what"] for row in rows] == ["math-verify, one process", "trl_ablate, 1 workers"]
    assert all(row["spread"] >= 0 and row["s"] > 0 for row in rows)
    assert facts["verdicts that differ"] == 0 and facts["answers"] == 4 * 8
