"""`trl-ablate evaluate`: what it refuses, before and while it looks for a model."""

import pytest
from rich.console import Console

from trl_ablate.cli.evaluate import main, table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{empty}"], "holds no model"),
        (["nobody/no-such-model"], "could not be loaded"),
        (["miniature", "--completions"], "add --output FILE"),
        (["miniature", "--output", "{empty}/no/file.json"], "does not exist; create it"),
        (["miniature", "--output", "{empty}"], "is a folder; give a file in it"),
        (["miniature", "--per_question", "{empty}"], "is a folder; give a file in it"),
        (["miniature", "--per_question", "{empty}/no/f"], "the folder of --per_question"),
        (["miniature", "--samples", "many"], "takes a whole number"),
        (["miniature", "--recipe", "std_dev_of"], "did you mean 'std_dev_off'?"),
        ([], "the following arguments are required: CHECKPOINT"),
    ],
)
def test_a_wrong_word_ends_in_one_sentence(tmp_path, capsys, words, said):
    filled = [word.format(empty=tmp_path) for word in words]
    assert main([*filled, "--profile", "miniature"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err and printed.err.startswith("error: ")
    assert len(printed.err.strip().splitlines()) == 1


def test_the_groups_of_a_set_are_shown_as_text():
    metrics = {"reward": 0.5, "reward/level=[red]3": 0.25, "reward_stderr/level=[red]3": 0.125}
    main_set = {"questions": 4, "metrics": metrics, "standard_errors": {"reward": 0.1}}
    other = {"questions": 1, "metrics": {"reward": 1.0}, "standard_errors": {"reward": 0.0}}
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table({"main": main_set, "other": other}, "title"))
    assert "reward/level=[red]3" in captured.get() and "0.250 ± 0.125" in captured.get()
