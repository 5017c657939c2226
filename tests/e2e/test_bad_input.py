"""Bad input of one's own task: one sentence with the value, what is allowed and what to do.

Each case breaks the folder that `trl-ablate new` writes, and runs `trl-ablate check` on it.
"""

import json
import re
import shutil

import pytest

from trl_ablate.cli import check, new

ROW = {"question": "What is 1+2?", "answer": "3", "level": 0}


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


def changed(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def rows(folder, *lines):
    (folder / "data" / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))


def no_dataset(folder):
    return ["--dataset", "gone.jsonl"], "'gone.jsonl': there is no such file or folder; create it"


def no_reward_file(folder):
    (folder / "reward.py").unlink()
    return [], "there is no file reward.py; create it, or correct the path"


def no_function(folder):
    words = ["--reward_funcs", '["reward.py:corect"]']
    return words, "has no 'corect'; it has .*; did you mean 'correct'?"


def a_reward_that_cannot_be_imported(folder):
    (folder / "reward.py").write_text("import no_such_module\n")
    return [], "reward.py cannot be imported: ModuleNotFoundError: .*no_such_module.*correct the"


def a_reward_with_a_syntax_error(folder):
    (folder / "reward.py").write_text("def correct(:\n")
    return [], "reward.py cannot be imported: SyntaxError: .*; correct the file"


def a_module_that_is_not_there(folder):
    return ["--reward_funcs", '["gone.rewards.score"]'], "there is no module 'gone' .*; install it"


def no_column_of_the_data(folder):
    return ["--question_column", "task"], "no column 'task'; the row has 'question', 'answer', 'le"


def no_column_for_the_reward(folder):
    changed(folder / "reward.py", "completions, answer", "completions, gold")
    return [], "reward 'correct' needs the column 'gold', but the train questions have question, a"


def no_template(folder):
    (folder / "prompt.txt").unlink()
    return [], "there is no template file prompt.txt; create it, or correct the path"


def a_template_without_the_question(folder):
    changed(folder / "prompt.txt", "{question}", "")
    return [], "prompt.txt does not contain {question}, .*; add it where the question goes"


def a_template_with_an_unknown_column(folder):
    changed(folder / "prompt.txt", "{question}", "{question} {hint}")
    return [], "names the column 'hint', which the data do not have; they have question, answer, l"


def an_empty_question(folder):
    rows(folder, json.dumps(ROW), json.dumps({**ROW, "question": " "}))
    return [], "train.jsonl, line 2: empty question; correct the row, or set skip_bad_rows"


def no_rows_at_all(folder):
    rows(folder)
    return [], "split 'train', has no usable rows"


def an_unreadable_parquet_file(folder):
    (folder / "data" / "train.jsonl").unlink()
    (folder / "data" / "train.parquet").write_bytes(b"PAR1 not really PAR1")
    return [], "train.parquet' is not a Parquet file .*; give a valid one"


def a_reward_that_returns_text(folder):
    (folder / "reward.py").write_text("def correct(completions, **kwargs):\n    return 'good'\n")
    words = ["--reward_funcs", '["reward.py:correct"]', "--reward_weights", "[1.0]"]
    return words, "problem: reward function 'correct' returned 'good', a str; return a list"


CASES = [
    no_dataset,
    no_reward_file,
    no_function,
    a_reward_that_cannot_be_imported,
    a_reward_with_a_syntax_error,
    a_module_that_is_not_there,
    no_column_of_the_data,
    no_column_for_the_reward,
    no_template,
    a_template_without_the_question,
    a_template_with_an_unknown_column,
    an_empty_question,
    no_rows_at_all,
    an_unreadable_parquet_file,
    a_reward_that_returns_text,
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_bad_input_is_one_sentence(case, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    words, sentence = case(folder)
    code, out, err = checked(folder, capsys, *words)
    said = err if code == 2 else out
    assert code in (1, 2) and len(said.splitlines()) == 1, said
    assert re.search(sentence, said), said


def test_rows_that_repeat_are_reported(folder, capsys, caplog):
    rows(folder, *[json.dumps(ROW)] * 3, json.dumps({**ROW, "question": "What is 2+1?"}))
    code, out, _ = checked(folder, capsys)
    assert code == 0
    assert "1 questions occur more than once, first: What is 1+2?" in out
    assert "2 of 4 rows repeat an earlier row in every column" in caplog.text


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
