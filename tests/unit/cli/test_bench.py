"""`trl-ablate bench`: what it refuses."""

import random

import pytest

from trl_ablate.bench.reward_time import golds_of
from trl_ablate.bench.synthetic import recorded_lengths
from trl_ablate.errors import ConfigurationError

WRONG = [("", "is empty"), ("[3]\n", "line 1: a JSON list"), ("5\n", "line 1: a JSON int"),
         ('{"answer": 3}\n', "line 1: its `{}` is"), ('{"x": 1}\n{"an', "line 1: its `{}` is None"),
         ('{"', "line 1: not JSON")]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_recorded_values_of_another_shape_are_refused(tmp_path, text, sentence):
    file = tmp_path / "recorded.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence.format("answer")):
        golds_of(file, random.Random(0))
    if "3]" in text:
        assert recorded_lengths(file) == [3]
    else:
        with pytest.raises(ConfigurationError, match=sentence.format("length")):
            recorded_lengths(file)


def test_recorded_values_are_read(tmp_path):
    file = tmp_path / "recorded.jsonl"
    file.write_text('{"answer": "1", "length": 4}\n{"answer": "x", "length": 2}\n')
    assert golds_of(file, random.Random(0)) == ["1", "x"]
    assert recorded_lengths(file) == [4, 2]
