"""A token of each kind, planted in a run and searched in all that a run and a study write."""

import json
from dataclasses import replace
from types import SimpleNamespace

from transformers import TrainerControl, TrainerState

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from trl_ablate.run import provenance
from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore
from trl_ablate.training.callbacks import RolloutWriter

MIX = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2bC5dE8fG"
PLANTED = {
    "anthropic": "sk-ant-api03-" + MIX,
    "github": "github_pat_" + MIX,
    "aws": "AKIA" + "QWERTYUIOP123456",
    "hf": "hf_" + MIX[:34],
    "password": "me:s3cret-w0rd",
}
TEXT = " and ".join(
    f"https://{value}@example.org" if name == "password" else value
    for name, value in PLANTED.items()
)


def assert_clean(folder):
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        content = file.read_bytes()
        assert not [name for name, value in PLANTED.items() if value.encode() in content], file
    return {file.name for file in files}


def test_no_report_holds_a_token_of_a_rollout_a_reason_or_a_command(tmp_path):
    plan = make_plan({"a": {"top": 0.6}, "b": {"top": 0.7}}, seeds=(0, 1))
    arms = tuple(
        replace(
            arm,
            warnings=(TEXT,),
            values={**arm.values, "x": TEXT},
            declared={"x": TEXT},
            runs=tuple(replace(run, words=(*run.words, f"--x={TEXT}")) for run in arm.runs),
        )
        for arm in plan.arms
    )
    plan = replace(plan, arms=arms, question=TEXT, notes=(TEXT,), seeds_answer=TEXT)
    store = RunStore(tmp_path / "runs")
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            said = [{"prompt": TEXT, "response": TEXT, "reward": 1.0}]
            rows = learning_rows(number, 0.6)
            settings = {"top": (0.6, 0.7)[number]}
            directory = write_run(store, run, settings, rows, rollouts=said)
            directory.update(reason=TEXT, status="failed" if run.seed else "finished")
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    names = assert_clean(tmp_path / "out")
    assert {"REPORT.md", "report.html", "runs.csv"} <= names


def test_no_rollout_that_is_kept_holds_a_token(tmp_path):
    rows = [{"prompt": TEXT, "response": [{"role": "assistant", "content": TEXT}], "reward": 1.0}]
    writer = RolloutWriter(RunDirectory(tmp_path), 4, 0)
    writer.attach(SimpleNamespace(latest_rollouts=lambda: rows))  # type: ignore
    state = TrainerState(is_world_process_zero=True, global_step=3)
    writer.on_evaluate(SimpleNamespace(report_to=[]), state, TrainerControl())
    assert assert_clean(tmp_path) == {"step_000003.jsonl"}
    (kept,) = map(json.loads, (tmp_path / "rollouts/step_000003.jsonl").read_text().splitlines())
    assert kept["reward"] == 1.0 and kept["response"][0]["role"] == "assistant"
    assert TEXT in rows[0]["prompt"]  # the values for the training are not changed


def test_a_long_diff_is_cut_between_lines(monkeypatch):
    line = f"+token = '{PLANTED['anthropic']}'\n"
    monkeypatch.setattr(provenance, "_git", lambda folder, *words: line * 3000)
    state = provenance.git_state(None)  # type: ignore
    assert state is not None and state["diff"].endswith(line)
    assert 100_000 - len(line) < len(state["diff"]) <= 100_000
