"""`trl-ablate inspect` on the logs of two stock TRL runs; `test_judge` has more forms of logs.

`tests/support/stock_logs.py` made the logs: one run learns, one collapses after three steps.
"""

import csv
import json
import sqlite3

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.cli.inspect import bars, main
from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.logs import read_logs
from trl_ablate.guard.replaying import replay

STOCK = REPOSITORY / "tests" / "data" / "stock_grpo"
FIRED = [("reward", 4), ("no_variance", 21)]
"""What the rules find in the collapsing run: the reward is 0 from the second step on."""


def history(name):
    rows = json.loads((STOCK / name / "trainer_state.json").read_text())["log_history"]
    return [row for row in rows if "loss" in row]


def fired(path):
    (log,) = read_logs(path)
    return [(alert.rule, alert.step) for alert in replay(log.rows, GuardArguments()).alerts]


def as_jsonl(rows, folder):
    """As a run writes it: an evaluation has a row of its own."""
    rows = [*rows[:5], {"step": rows[4]["step"], "eval_mean_length": 9.0}, *rows[5:]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def as_trackio(rows, folder):
    """The table of trackio 0.43, with the names that its callback gives."""
    written = [{"train/global_step" if name == "step" else f"train/{name}": value
                for name, value in row.items()} for row in rows] + [{"note": "a"}]  # fmt: skip
    return add_run(folder / "project.db", "one", written)


def add_run(project, name, rows):
    calls = ((name, call, json.dumps(row)) for call, row in enumerate(rows, start=7))
    with sqlite3.connect(project) as database:
        columns = "id INTEGER PRIMARY KEY, run_name, step, metrics"
        database.execute(f"CREATE TABLE IF NOT EXISTS metrics ({columns})")
        command = "INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)"
        database.executemany(command, calls)
    return project


def as_wandb_table(rows, folder):
    """What `run.history().to_csv()` writes: an index, its own steps, and empty fields."""
    names = ["reward", "loss", "grad_norm", "completions/mean_length", "frac_reward_zero_std"]
    header = ["", "_step", *(f"train/{name}" for name in names), "train/global_step"]
    body = [[i, i + 3, *(row[name] for name in names), row["step"]] for i, row in enumerate(rows)]
    body.insert(5, [99, 99, "", "", "", "", "", 5])
    body.append([100, 100, *[0.0] * 5, ""])  # a table of completions, logged by itself
    return as_table(folder / "history.csv", header, body)


def as_tensorboard(rows, folder):
    for name in ("reward", "frac_reward_zero_std", "completions/mean_length"):
        body = [[1.7e9 + row["step"], row["step"], row[name]] for row in rows]
        tag = f"run-one-tag-train_{name.replace('/', '_')}.csv"
        as_table(folder / tag, ["Wall time", "Step", "Value"], body)
    return folder


def as_table(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.mark.parametrize("form", [as_jsonl, as_trackio, as_wandb_table, as_tensorboard])
def test_every_form_of_a_log_gives_the_same_alerts(form, tmp_path):
    for name, expected in (("healthy", []), ("collapsing", FIRED)):
        assert fired(STOCK / name) == fired(STOCK / name / "trainer_state.json") == expected
        folder = tmp_path / name
        folder.mkdir()
        assert fired(form(history(name), folder)) == expected


def test_the_command_prints_rules_steps_reasons_and_curves(tmp_path, capsys):
    picture = tmp_path / "curves.png"
    assert main([str(STOCK / "collapsing"), "--picture", str(picture)]) == 1
    shown = capsys.readouterr().out
    assert "collapsing: 60 logged steps, from 1 to 60" in shown
    assert "step 4: reward (warn): reward is 0; its best was 0.141" in shown
    assert "step 21: no_variance (warn): in 20 logged rows no group had any variance" in shown
    assert "not checked: length_spread, because the log has no completions/length_spread" in shown
    assert "█▁▁▁▁▁▁" in shown and "".join(bars([0.0, 1.0, float("nan")])) == "▁█!"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([str(STOCK / "healthy"), "--picture", str(picture)]) == 2
    assert "exists already; give another name, or --overwrite" in capsys.readouterr().err
    assert main([str(STOCK / "healthy"), "--picture", str(picture), "--overwrite"]) == 0
    assert "no rule fired" in capsys.readouterr().out
    words = ["--guard_reward=off", "--guard_no_variance_steps", "30"]
    assert main([str(STOCK / "collapsing"), *words]) == 1
    shown = capsys.readouterr().out
    assert "step 31: no_variance" in shown and "reward (warn)" not in shown
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": NaN}\n{"step": 2, "reward": 1}')
    main([str(tmp_path / "metrics.jsonl")])
    assert "reward: first nan, last 1, lowest 1, highest 1" in capsys.readouterr().out


def test_the_runs_of_a_project_are_inspected_one_by_one(tmp_path, capsys, monkeypatch):
    """It is in the cache of huggingface_hub, named by its letters and digits, or in TRACKIO_DIR."""
    folder = tmp_path / "trackio"
    folder.mkdir()
    project = as_trackio(history("healthy"), folder).rename(folder / "mymodel-2_b.db")
    rewards = [{"train/global_step": row["step"], "train/reward": row["reward"]}
               for row in history("collapsing")]  # fmt: skip
    add_run(project, "two", rewards)
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert main(["my.model-2_b"]) == 1
    assert capsys.readouterr().out.count("60 logged steps") == 2
    assert main([str(project), "--run", "one"]) == 0
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    assert main(["my.model-2_b", "--run", "three"]) == 2
    assert "--run is 'three', but the log has the runs one, two" in capsys.readouterr().err
    assert main(["my.model-2_b", "--picture", "x.png"]) == 2
    assert main([str(STOCK / "healthy"), "--picture", "x.jpg"]) == 2
    assert "x.jpg is a PNG; call it x.png" in capsys.readouterr().err


def test_a_picture_of_a_log_that_lacks_a_grpo_step(tmp_path):
    rows = [{**row, "grpo_step": row["step"]} for row in history("healthy")]
    rows[3]["grpo_step"] = None
    words = [str(as_jsonl(rows, tmp_path)), "--picture", str(tmp_path / "curves.png")]
    assert main(words) == 0 and (tmp_path / "curves.png").stat().st_size


def test_rewards_that_are_named_as_seeds_are_no_seeds(tmp_path):
    named = {"rewards/reward_s1/mean": 0.1, "rewards/reward_s1/std": 0.0}
    assert fired(as_jsonl([row | named for row in history("collapsing")], tmp_path)) == FIRED


@pytest.mark.parametrize("place", ["guard/metrics.jsonl", "checkpoint-9/trainer_state.json"])
def test_a_folder_names_its_run_and_a_norm_that_is_nan_is_found(tmp_path, place):
    file = tmp_path / "grpo-s0" / place
    file.parent.mkdir(parents=True)
    rows = history("healthy")[:30]
    rows[25]["grad_norm"] = float("nan")
    state = json.dumps({"log_history": rows})
    file.write_text(state if file.suffix == ".json" else "\n".join(map(json.dumps, rows)))
    for path in (tmp_path / "grpo-s0", file.parent, file):
        assert [log.name for log in read_logs(path)] == ["grpo-s0"]
        assert fired(path) == [("nonfinite", 26)]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "{}", "has no log_history"),
        ("a.txt", "x", "is not a log that is known here"),
        ("a.db", "x", "is not a trackio project that can be read"),
        ("a.csv", "a,b\n1,2\n", "has no column of steps"),
        ("a.jsonl", "", "has no logged steps"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=sentence):
        read_logs(tmp_path / name)
    with pytest.raises(ConfigurationError, match="is neither a file nor a folder"):
        read_logs(tmp_path / "none")


def test_too_few_steps_are_reported():
    rows = [{**row, "format_reward": 1.0} for row in history("healthy")]
    of_first, of_both = ["length", "entropy", "shortcut"], ["grad_norm", "spike", "no_variance"]
    for count, short in ((12, of_first + of_both), (13, of_both), (19, of_both), (20, [])):
        assert {*replay(rows[:count], GuardArguments()).short} == {*short}
    twice = [one for row in rows[:19] for one in (row, {"step": row["step"], "grad_norm": 1.0})]
    assert {"grad_norm", "spike"} <= {*replay(twice, GuardArguments()).short}  # 19 GRPO steps
