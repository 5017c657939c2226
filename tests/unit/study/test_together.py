"""Studies of a list together: what a pass does, what all cost, and the commands with --all."""

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from tests.support.tuned_study import tuned_plan
from trl_ablate.cli import study_runs
from trl_ablate.cli.study import main
from trl_ablate.study.estimate import Share, total_of
from trl_ablate.study.planned import Plan
from trl_ablate.study.runner import Outcome
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ARMS = {"grpo": {"top": 0.8}, "worse": {"top": 0.4}, "alike": {"top": 0.801}}
LOOKS = (3, 5, 8)


def looking(**arms: dict) -> Plan:
    return replace(make_plan(arms or ARMS, range(LOOKS[-1]), looks=LOOKS), study="looking")


def fixed() -> Plan:
    arms = {name: ARMS[name] for name in ("grpo", "worse")} | {"own": {"top": 0.6}}
    return replace(make_plan(arms), study="fixed")


def do(plan: Plan, store: RunStore, run_ids, status: str = "finished") -> None:
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            if run.id in run_ids and not store.state(run.id).done:
                rows = learning_rows(1000 * number + run.seed, arm.declared["top"])
                write_run(store, run, arm.declared, rows, status=status)


def test_a_pass_is_one_look_or_all_runs(tmp_path):
    store, plan = RunStore(tmp_path), looking()
    assert len(StudyRuns(plan, store).of_pass(True)) == 9
    assert len(StudyRuns(plan, store).of_pass(False)) == 24
    assert len(StudyRuns(fixed(), store).of_pass(True)) == 9
    do(plan, store, StudyRuns(plan, store).of_pass(True))
    assert len(StudyRuns(plan, store).of_pass(True)) == 4  # two more seeds of `alike` and of `grpo`
    left = StudyRuns(fixed(), store).of_pass(True)
    assert [run for run in left if run not in {r.id for r in fixed().arms[2].runs}] == []
    assert StudyRuns(fixed(), store).of_pass(True, left[:1]) == left[1:]


def test_the_passes_of_a_tuned_study_are_its_trials_and_then_its_fresh_seeds(tmp_path):
    store, plan = RunStore(tmp_path), tuned_plan({"grpo": [0.4, 0.8], "b": [0.5, 0.9]})
    trials = StudyRuns(plan, store).of_pass(True)
    assert len(trials) == 2 * 2 * 2
    do(plan, store, trials)
    assert len(StudyRuns(plan, store).of_pass(True)) == 2 * 3
    do(plan, store, StudyRuns(plan, store).of_pass(True))
    assert StudyRuns(plan, store).of_pass(True) == []


def test_a_trial_that_failed_is_tried_again_by_the_next_command(tmp_path):
    """Before it has failed in this command, nothing may be chosen without it."""
    store, plan = RunStore(tmp_path), tuned_plan({"grpo": [0.4, 0.8], "b": [0.5, 0.9]})
    first, *others = StudyRuns(plan, store).of_pass(True)
    do(plan, store, others)
    do(plan, store, [first], status="failed")
    assert first in StudyRuns(plan, store).of_pass(True)
    assert (
        len(StudyRuns(plan, store).of_pass(True)) == 1 + 3
    )  # and the fresh seeds of the other arm
    fresh = StudyRuns(plan, store).of_pass(True, [first])
    assert first not in fresh and len(fresh) == 6


def total(plans: list[Plan], store: RunStore) -> tuple[list[Share], Share]:
    return total_of([StudyRuns(plan, store) for plan in plans])


def counts(share: Share) -> list[int]:
    """Of a share: its runs at best and at worst, the new ones among them, and those done."""
    new = len(share.best.runs), len(share.worst.runs)
    return [*share.runs, *new, len(share.worst.done)]


def test_a_run_that_is_done_costs_nothing_in_either_case(tmp_path):
    """Seeds 3 to 7 of `grpo` are new with the second study at best, and with the first at worst."""
    store, several = RunStore(tmp_path), replace(make_plan(ARMS, range(8)), study="several")
    do(several, store, several.runs())
    (_, second), whole = total([looking(), several], store)
    assert counts(second) == [24, 24, 15, 0, 0] and second.best.hours() == second.worst.hours() == 0
    assert whole.best.hours() == whole.worst.hours(1) == 0 and len(whole.worst.done) == 24


def test_runs_that_studies_share_are_counted_once(tmp_path):
    store, plans = RunStore(tmp_path), [looking(), fixed()]
    shares, whole = total(plans, store)
    assert whole.best.hours() is whole.worst.hours(2) is shares[1].best.hours() is None
    assert [counts(share) for share in shares] == [[9, 24, 9, 24, 0], [9, 9, 3, 3, 0]]
    assert counts(whole) == [12, 27, 12, 27, 0]
    do(plans[0], store, StudyRuns(plans[0], store).of_pass(True))
    shares, whole = total(plans, store)
    assert [len(share.worst.done) for share in (whole, *shares)] == [9, 9, 0]
    least, most, half = whole.best.hours(), whole.worst.hours(), whole.worst.hours(2)
    assert least == pytest.approx(3 * 60 / 3600, rel=0.2)  # the runs of the arm `own`
    assert most == pytest.approx(18 * 60 / 3600, rel=0.2)
    assert most and half == pytest.approx(most / 2, rel=0.1)


class Faked:
    """Makes the runs that `--all` asks for, and keeps a record of the calls."""

    def __init__(self, fails=(), stops_after=None):
        self.calls: list[tuple[str, int]] = []
        self._fails, self._stops = fails, stops_after

    def __call__(self, runs, engine, *, only, **how) -> Outcome:
        plan, store = runs.plan, runs.store
        self.calls.append((plan.study, len(only)))
        if self._stops is not None and len(self.calls) > self._stops:
            return Outcome(left=list(only))
        failed = [run for run in only if run in self._fails]
        do(plan, store, [run for run in only if run not in failed])
        return Outcome(done=[run for run in only if run not in failed], failed=failed)


@pytest.fixture
def all_of(tmp_path, monkeypatch):
    """Runs `study run --all` over made-up plans."""

    def all_of(plans, until="decided", **faked) -> tuple[int, Faked]:
        store = RunStore(tmp_path)
        studies, made = [StudyRuns(plan, store) for plan in plans], Faked(**faked)
        monkeypatch.setattr(study_runs, "executed", made)
        options = Namespace(until=until, max_hours=None, retries=1, runs=tmp_path)
        engine: Any = None
        return study_runs.run_all(studies, engine, options), made

    return all_of


def test_every_question_has_its_first_look_before_any_has_its_second(all_of, capsys):
    code, made = all_of([looking(), fixed()])
    assert code == 0
    assert made.calls == [("looking", 9), ("fixed", 3), ("looking", 4), ("looking", 6)]
    printed = " ".join(capsys.readouterr().out.split())
    assert "looking: 9 runs" in printed and "done; next: trl-ablate findings" in printed


def test_interrupted_it_continues_where_it_was(all_of, capsys):
    code, made = all_of([looking(), fixed()], stops_after=1)
    assert code == 3 and made.calls == [("looking", 9), ("fixed", 3)]
    assert "rerun this command to continue" in " ".join(capsys.readouterr().out.split())
    code, made = all_of([looking(), fixed()])
    assert code == 0 and made.calls == [("fixed", 3), ("looking", 4), ("looking", 6)]
    assert all_of([looking(), fixed()])[1].calls == []


def test_a_run_that_fails_is_named_and_ends_nothing(all_of):
    bad = fixed().arms[2].runs[1].id
    code, made = all_of([fixed(), looking()], fails=[bad])
    assert code == 1 and made.calls[0] == ("fixed", 9)
    assert [name for name, _ in made.calls].count("fixed") == 1 and len(made.calls) == 4


def test_without_until_all_runs_are_made(all_of):
    assert all_of([looking(), fixed()], until=None)[1].calls == [("looking", 24), ("fixed", 3)]


def test_the_plan_of_a_list_counts_shared_runs_once(tmp_path, capsys):
    head = "question: q\nprofile: miniature\narms: [grpo.yaml, std_dev_off.yaml]\n"
    for name, seeds in (("one", "{looks: [3, 5]}"), ("two", "[0, 1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.yaml").write_text(f"{head}seeds: {seeds}\n")
    rows = [{"question": "Q?", "part": "question", "study": name} for name in ("one", "two")]
    chosen = tmp_path / "findings.yaml"
    chosen.write_text(json.dumps({"rows": rows}))
    assert main(["plan", "--all", str(chosen), "--runs", str(tmp_path / "runs")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "one 6 to 10 6 to 10 0" in printed and "two 4 0 0" in printed
    assert "6 to 10 different runs, 0 done" in printed
    assert not list((tmp_path / "runs").glob("*seed*"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plan"], "name one STUDY, or give --all"),
        (["run", "std_dev", "--all"], "name one STUDY, or give --all"),
        (["plan", "--all", "--xray"], "--xray applies to one study"),
        (["run", "--all", "--only", "x"], "--only applies to one study"),
        (["run", "--all", "--engine", "slurm"], "not with --engine slurm"),
        (["plan", "--all", "gone.yaml"], "gone.yaml"),
    ],
)
def test_what_all_refuses(words, complaint, capsys):
    assert main(words) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
