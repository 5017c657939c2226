"""Every mode of the bench alternates, and reports medians and spreads."""

import torch

from trl_ablate.bench import reward_time, rollout_time, scale_time, step_time, train_time
from trl_ablate.bench.modes import Grading, Scale, Step
from trl_ablate.bench.timing import Measured, median, ratio, spread


def test_a_ratio_is_of_pairs_so_that_a_passing_load_does_not_show():
    ours = [1.0, 1.1, 4.0, 1.0]
    theirs = [2.0, 2.2, 8.0, 2.0]  # the third pair was measured while another program ran
    assert ratio(theirs, ours) == 2
    assert (median(ours), spread(ours)) == (1.05, 3.0)


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
    assert (stock["CPU s/step"], ours["CPU s/step"], ours["CPU ratio"]) == (3.0, 2.0, 1.5)


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


def test_tables_of_rounds_have_medians_spreads_and_ratios_of_pairs():
    theirs, ours = [2.0, 8.0, 2.0], [1.0, 4.0, 1.0]
    found = {"stock": Measured(theirs, theirs), "ours": Measured(ours, ours)}
    training = train_time.rows_of(found, train_time.Workload([10, 10]))
    seconds = {"transformers": theirs, "trl_ablate": ours}
    done = {
        name: [rollout_time.Rollouts(torch.empty(0), cpu, 1) for cpu in [99.0, *taken]]
        for name, taken in seconds.items()
    }
    generating = rollout_time.rows_of(seconds, done, 20)
    for rows, unit in ((training, "s/step"), (generating, "s/batch")):
        assert [row[unit] for row in rows] == [2.0, 1.0]
        assert [row["spread"] for row in rows] == [6.0, 3.0]
        assert [row["ratio"] for row in rows] == [row["CPU ratio"] for row in rows] == [1.0, 2.0]
