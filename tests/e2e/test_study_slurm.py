"""Array jobs, submitted to an sbatch that runs their tasks as processes of this machine."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.studies import DRIVER, numbers, starts, undisturbed, wait_for
from tests.support.synthetic_study import make_plan
from trl_ablate import ConfigurationError
from trl_ablate.study.engines.slurm import array_job, submit
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ARMS = {"a": {"top": 0.8}, "b": {"top": 0.5, "collapse": 8}}
SBATCH = r"""#!/bin/bash
script=$(cat)
for task in $(seq 0 "$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' <<< "$script")"); do
    [[ " $LOST_TASKS " == *" $task "* ]] || SLURM_ARRAY_TASK_ID=$task bash <<< "$script" &
done
wait
echo "42;cluster"
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """The fake on the PATH; it runs no task whose index is in LOST_TASKS."""
    file = tmp_path / "bin" / "sbatch"
    file.parent.mkdir()
    file.write_text(SBATCH)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LOST_TASKS", "")
    return file


def script_for(store: RunStore) -> str:
    study = StudyRuns(make_plan(ARMS), store)
    command = [*DRIVER, str(store.path), json.dumps(ARMS)]
    return array_job(study, study.to_start, command, cpus=2, at_once=3)


@pytest.mark.slow
def test_submitting_again_does_what_is_missing_and_nothing_twice(tmp_path, sbatch, monkeypatch):
    store = RunStore(tmp_path / "the runs")
    store.path.mkdir()
    monkeypatch.setenv("LOST_TASKS", "1 4")
    first = script_for(store)
    assert "#SBATCH --array=0-5%3" in first and "#SBATCH --cpus-per-task=2" in first
    assert submit(first) == "42"
    assert len(starts(store.path)) == 4
    monkeypatch.setenv("LOST_TASKS", "")
    second = script_for(store)
    assert "#SBATCH --array=0-1%3" in second
    submit(second)
    submit(first)  # as if it had waited in the queue
    assert list(starts(store.path).values()) == [1] * 6
    assert StudyRuns(make_plan(ARMS), store).to_start == []
    assert numbers(store, ARMS) == undisturbed(tmp_path / "calm", ARMS)
    names = {path.stem for path in store.path.glob("*.slurm")}
    assert names == set(make_plan(ARMS).runs())


@pytest.mark.slow
def test_a_run_that_somebody_is_at_is_left_to_them(tmp_path, sbatch):
    store = RunStore(tmp_path)
    script, run = script_for(store), next(iter(make_plan(ARMS).runs()))
    lock = store.lock(run)
    assert lock.acquire()
    assert run not in StudyRuns(make_plan(ARMS), store).to_start
    submit(script)
    assert run not in starts(store.path) and len(starts(store.path)) == 5
    lock.release()


STUDY = """
question: q
arms: [std_dev_off.yaml]
seeds: [0]
profile: miniature
overrides: {grpo_steps: 20, generation_batch_size: 32, optimizer_batch_size: 32, train_size: 64,
  per_device_train_batch_size: 8, eval_size: 16, eval_steps: 100, save_steps: 100}
"""


@pytest.mark.long
def test_sigterm_to_a_task_has_its_run_save_and_the_next_task_goes_on(tmp_path):
    """What `#SBATCH --signal=B:TERM@…` sends, to the task's own process."""
    (tmp_path / "study.yaml").write_text(STUDY)
    store = RunStore(tmp_path / "runs")
    words = ["scripts/study.py", "run", tmp_path / "study.yaml", "--runs", store.path]
    printing = [sys.executable, *words, "--engine", "slurm"]
    script = subprocess.run(
        printing, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    assert "#SBATCH --signal=B:TERM@" in script
    (run,) = script.partition("runs=(")[2].partition(")")[0].split()
    task = start_task(script)

    def began() -> bool:
        return bool(list(store.directory(run).metrics())[1:])

    wait_for(lambda: began() or task.poll() is not None, seconds=300)
    directory = store.directory(run)
    task.send_signal(signal.SIGTERM)
    assert task.wait(120) == 130
    record = directory.read()
    assert (record["status"], record["reason"]) == ("stopped", "ended by SIGTERM")
    (checkpoint,) = directory.path.glob("checkpoint-*")
    assert store.state(run).status == "interrupted"
    assert start_task(script).wait(300) == 0
    assert directory.read()["status"] == "finished"
    log = "".join(store.log(run).read_text().split())  # the width of a terminal cuts lines
    assert f"resumingfrom{checkpoint}".replace(" ", "") in log
    steps = [row["step"] for row in directory.metrics() if "loss" in row]
    assert steps == list(range(1, 21))


def start_task(script: str) -> subprocess.Popen:
    """One task of an array job, as Slurm starts it: a shell that has the script."""
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    return subprocess.Popen(["bash", "-c", script], env=environment, cwd=REPOSITORY)


def test_a_gpu_for_every_run_of_a_gpu_profile_and_the_whole_script(tmp_path):
    plan, store = replace(make_plan(ARMS), for_gpu=True), RunStore(tmp_path / "a b")
    study = StudyRuns(plan, store)
    script = array_job(study, ["x-seed0", "x-seed1"], ["true", "a b"], cpus=2)
    assert (
        script
        == f"""#!/bin/bash
#SBATCH --job-name="{plan.study}"
#SBATCH --array=0-1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:1
#SBATCH --signal=B:TERM@300
#SBATCH --output="{tmp_path}/a b/slurm-%A_%a.out"

set -eu
runs=(x-seed0 x-seed1)
run=${{runs[$SLURM_ARRAY_TASK_ID]}}
exec >> '{tmp_path}/a b'/"$run".slurm 2>&1
cd {Path.cwd()}
exec true 'a b' --only "$run"
"""
    )
    assert "--gres" not in array_job(StudyRuns(make_plan(ARMS), store), ["x-seed0"], ["true"])


def test_what_sbatch_says_is_passed_on(tmp_path, sbatch, monkeypatch):
    sbatch.write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    with pytest.raises(ConfigurationError, match="invalid partition; set SBATCH_PARTITION"):
        submit("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="sbatch is not installed here; run this"):
        submit("")
