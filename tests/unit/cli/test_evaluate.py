"""`trl-ablate evaluate`: what it refuses, before and while it looks for a model."""

import pytest

from trl_ablate.cli.evaluate import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{empty}"], "holds no model"),
        (["nobody/no-such-model"], "could not be loaded"),
        (["miniature", "--completions"], "add --output FILE"),
        (["miniature", "--output", "{empty}/no/file.json"], "does not exist; create it"),
        (["miniature", "--output", "{empty}"], "is a folder; give a file in it"),
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
