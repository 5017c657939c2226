"""A probe measures one run, from which the others are estimated; later plans need no probe."""

from types import SimpleNamespace
from typing import Any

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from trl_ablate.study.estimate import PROBE_STEPS, estimate, probe, probe_name
from trl_ablate.study.planned import PlannedRun
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore


def test_one_run_is_probed_and_all_are_estimated(tmp_path):
    plan = make_plan({"a": {"top": 0.8}, "b": {"top": 0.5}, "c": {"top": 0.3}})
    store = RunStore(tmp_path)
    started, said = [], []

    def start(job, slot):
        started.append(job)
        name = str(job.directory.relative_to(tmp_path))
        if len(started) > 1:  # the first probe fails
            write_run(store, PlannedRun(name, 0, ()), {}, learning_rows(0, top=0.5, steps=2))
        return SimpleNamespace(
            wait=lambda: int(len(started) == 1), ask_to_end=lambda: None, end=lambda: None
        )

    engine: Any = SimpleNamespace(start=start, slots=1)
    assert estimate(StudyRuns(plan, store)).hours() is None
    (tmp_path / "probes").mkdir()
    probe(StudyRuns(plan, store), engine, said.append)
    probed = [job.directory.relative_to(tmp_path).as_posix() for job in started]
    assert probed == [probe_name(arm.runs[0]) for arm in plan.arms[:2]]
    assert f"--grpo_steps={PROBE_STEPS}" in started[0].words
    assert said[1] == "a: probe failed: it printed nothing"
    found = estimate(StudyRuns(plan, store))
    # 20 steps of 1.4 s and 6 evaluations of 0.4 s, without what is outside of both
    assert (found.hours() or 0) >= 9 * (28 + 2.4) / 3600
    assert found.unmeasured == ("a", "c") and len(found.runs) == 9
    probe(StudyRuns(plan, store), engine, said.append)
    assert len(started) == 2
