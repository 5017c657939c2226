"""Array jobs, submitted to an sbatch that runs their tasks as processes of this machine."""

import json
import os
from dataclasses import replace

import pytest

from tests.support.studies import DRIVER, numbers, starts, undisturbed
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
    return file


@pytest.mark.slow
def test_submitting_again_does_what_is_missing_and_nothing_twice(tmp_path, sbatch, monkeypatch):
    """Also a run that somebody else is at is left to them."""
    store = RunStore(tmp_path / "the runs")
    store.path.mkdir()

    def script(tasks: int) -> str:
        study = StudyRuns(make_plan(ARMS), store)
        command = [*DRIVER, str(store.path), json.dumps(ARMS)]
        text = array_job(study, study.to_start, command, cpus=2, at_once=3)
        assert f"#SBATCH --array=0-{tasks - 1}%3" in text and "--cpus-per-task=2" in text
        return text

    first, (busy, *_) = script(6), make_plan(ARMS).runs()
    monkeypatch.setenv("LOST_TASKS", "1 4")
    lock = store.lock(busy)
    assert lock.acquire()
    assert submit(first) == "42"
    assert busy not in starts(store.path) and len(starts(store.path)) == 3
    second = script(2)
    lock.release()
    monkeypatch.setenv("LOST_TASKS", "")
    submit(second)
    submit(first)  # as if it had waited in the queue
    assert list(starts(store.path).values()) == [1] * 6
    assert StudyRuns(make_plan(ARMS), store).to_start == []
    assert numbers(store, ARMS) == undisturbed(tmp_path / "calm", ARMS)
    assert {path.stem for path in store.path.glob("*.slurm")} == set(make_plan(ARMS).runs())


def test_a_gpu_for_every_run_of_a_gpu_profile_and_quoted_words(tmp_path):
    plan, store = replace(make_plan(ARMS), for_gpu=True), RunStore(tmp_path / "a b")
    script = array_job(StudyRuns(plan, store), ["x-seed0"], ["true", "a b"])
    assert {
        f'#SBATCH --job-name="{plan.study}"', "#SBATCH --gres=gpu:1",
        "#SBATCH --signal=B:TERM@300", f'#SBATCH --output="{tmp_path}/a b/slurm-%A_%a.out"',
        f"exec >> '{tmp_path}/a b'/\"$run\".slurm 2>&1", "exec true 'a b' --only \"$run\"",
    } <= {*script.splitlines()}  # fmt: skip
    assert "--gres" not in array_job(StudyRuns(make_plan(ARMS), store), ["x-seed0"], ["true"])
    odd = StudyRuns(plan, RunStore(tmp_path / "two\nlines"))
    with pytest.raises(ConfigurationError, match="a line break, which no #SBATCH line can hold"):
        array_job(odd, ["x-seed0"], ["true"])


def test_what_sbatch_says_is_passed_on(tmp_path, sbatch, monkeypatch):
    sbatch.write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    with pytest.raises(ConfigurationError, match="invalid partition; set SBATCH_PARTITION"):
        submit("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="sbatch is not installed here; run this"):
        submit("")
