"""`trl-ablate bench`: what it refuses."""

import pytest

from trl_ablate.cli.bench import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "error: argument MODE: invalid choice: 'trian'"),
        (["train", "--row", "3"], "error: unknown option '--row'; did you mean '--rows'?"),
        (["train", "--output", "absent/bench.json"],
         "error: the folder of --output absent/bench.json does not exist; create it"),
    ],
)  # fmt: skip
def test_a_wrong_word(capsys, words, sentence):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence) and said.count("\n") == 1
