"""`trl-ablate evaluate`: what it refuses, before and while it looks for a model."""

from rich.console import Console

from trl_ablate.cli.evaluate import table


def test_the_groups_of_a_set_are_shown_as_text():
    metrics = {"reward": 0.5, "reward/level=[red]3": 0.25, "reward_stderr/level=[red]3": 0.125}
    main_set = {"questions": 4, "metrics": metrics, "standard_errors": {"reward": 0.1}}
    other = {"questions": 1, "metrics": {"reward": 1.0}, "standard_errors": {"reward": 0.0}}
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table({"main": main_set, "other": other}, "title"))
    assert "reward/level=[red]3" in captured.get() and "0.250 ± 0.125" in captured.get()
