"""Bad input of one's own task: one sentence with the value, what is allowed and what to do.

Each case breaks the folder that `trl-ablate new` writes, and runs `trl-ablate check` on it.
"""

import json
import re
import shutil

import pytest

from trl_ablate.cli import check, new


@pytest.fixture
def folder(tmp_path):
    assert new.main([str(tmp_path / "my_task")]) == 0
    return tmp_path / "my_task"


def checked(folder, capsys, *words):
    """The exit code, what was printed, and the only line of stderr."""
    capsys.readouterr()
    code = check.main([str(folder / "recipe.yaml"), *words])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


RETURNS_TEXT = "def correct(completions, **kwargs):\n    return 'good'\n"
REWARD = ["--reward_funcs", '["reward.py:correct"]', "--reward_weights", "[1.0]"]

CASES = {  # name: file -> its new content or None, or a replacement in it; words; the sentence
    "reward cannot be imported": ({"reward.py": "import no_such_module\n"}, [],
        "reward.py cannot be imported: ModuleNotFoundError: .*no_such_module.*correct the"),
    "no column for the reward": ({"reward.py": ("completions, answer", "completions, gold")}, [],
        "reward 'correct' needs the column 'gold', but the train questions have question, a"),
    "template with an unknown column": ({"prompt.txt": ("{question}", "{question} {hint}")}, [],
        "names the column 'hint', which the data do not have; they have question, answer, l"),
    "unreadable Parquet": ({"data/train.jsonl": None, "data/train.parquet": "PAR1 not really"}, [],
        "train.parquet' is not a Parquet file .*; give a valid one"),
    "reward returns text": ({"reward.py": RETURNS_TEXT}, REWARD,
        "problem: reward function 'correct' returned 'good', a str; return a list"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence(case, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    broken, words, sentence = CASES[case]
    for name, content in broken.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, tuple):
            assert content[0] in (folder / name).read_text()
            (folder / name).write_text((folder / name).read_text().replace(*content))
        else:
            (folder / name).write_text(content)
    code, out, err = checked(folder, capsys, *words)
    said = err if code == 2 else out
    assert code in (1, 2) and len(said.splitlines()) == 1, said
    assert re.search(sentence, said), said


def test_code_of_a_model_needs_trust_remote_code(folder, capsys, tmp_path, tiny_model, monkeypatch):
    """A reward model whose repository brings its own code is refused, and the code is not run."""
    judge = shutil.copytree(tiny_model, tmp_path / "judge")
    config = json.loads((judge / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "evil.Evil"}
    config["model_type"] = "evil"
    (judge / "config.json").write_text(json.dumps(config))
    (judge / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code, _, err = checked(folder, capsys, "--reward_funcs", json.dumps([str(judge)]))
    assert code == 2 and "reward model" in err and not (tmp_path / "ran").exists()
