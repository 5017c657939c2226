"""`trl-ablate study`: what it prints and refuses, without starting a run."""

import errno
import re
import sys
from argparse import Namespace
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from unittest.mock import Mock

import pytest

from tests.support.synthetic_study import make_plan, write_run
from trl_ablate.cli import study
from trl_ablate.cli.engines import engines
from trl_ablate.cli.study import chosen, main
from trl_ablate.cli.study_runs import ended
from trl_ablate.run.json_files import write_json
from trl_ablate.study import planned
from trl_ablate.study.runner import Outcome
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ONE_ARM = "question: q\narms: [grpo.yaml]\nseeds: [0, 1]\nprofile: miniature\n"


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> list[str]:
    """The words for a study of one arm and two seeds."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.yaml").write_text(ONE_ARM)
    return [str(folder / "study.yaml"), "--runs", str(folder / "runs")]


@pytest.fixture(scope="module")
def printed(where) -> str:
    """An array job; after it is printed, the plan is saved."""
    words = ["--engine", "slurm", "--cpus_per_run", "4", "--retries", "2", "--jobs", "1"]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main(["run", *where, *words]) == 0
    assert "nothing was submitted" in err.getvalue()
    return out.getvalue()


def runs_of(script: str) -> list[str]:
    return script.partition("runs=(")[2].partition(")")[0].split()


def test_a_slurm_job_is_printed_and_its_runs_are_the_studys(capsys, printed, where):
    assert printed.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=0-1%1\n" in printed and "--cpus-per-task=4" in printed
    assert [run.partition("-")[2] for run in runs_of(printed)] == ["seed0", "seed1"]
    command = f"-m trl_ablate study run {' '.join(where)} --retries 2 --only"
    assert command in printed
    assert main(["fetch", *where]) == 0
    assert capsys.readouterr().out == "no runs to fetch\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only", "{run}9"], "--only {run}9: the study has no such run; did you mean '{run}'?"),
        (["--only", "x"], "has no such run; name one by its id, such as {run}"),
        (["--submit"], "--submit does not apply to --engine local; use it with --engine slurm"),
        (["--cpus_per_run", "2", "--engine=slurm", "--keep_checkpoints"],
         "--keep_checkpoints does not apply to --engine slurm; use it with --engine ray or modal "
         "or hf_jobs"),
        (["--jobs", "0"], "argument --jobs: '0' is no whole number of at least 1; see `trl-ablate "
         "study run --help`"),
        (["--max_hours", "nan"], "argument --max_hours: 'nan' is no number of at least 0; see "),
        (["--job", "2"], "unknown option '--job'; did you mean '--jobs'? See `trl-ablate study "
         "run --help`"),
        (["--only", "{run}", "--engine", "ray", "--ray_address", "ray://there:1"],
         "--ray_address ray://there:1 is an address of Ray Client; run on the cluster's head "
         "node, with --ray_address auto and no RAY_ADDRESS"),
        (["--engine", "slurm", "--max_hours", "2"],
         "--max_hours does not apply to --engine slurm; set SBATCH_TIMELIMIT"),
        (["--engine", "ray", "--max_hours", "2"],
         "--max_hours does not apply to --engine ray; leave it out: of a run that is stopped"),
        (["--engine", "slurm", "--profile", "auto"],
         "give --profile, for the machines that train"),
        (["--until", "decided"], "its seeds are fixed, so --until decided has nothing to add"),
        (["--until", "decided", "--only", "{run}"], "use one of them"),
    ],
)  # fmt: skip
def test_what_run_refuses(capsys, printed, where, words, sentence):
    if "ray://there:1" in words:
        pytest.importorskip("ray", reason="ray is not installed")
    run = runs_of(printed)[0]
    assert main(["run", *where, *(word.format(run=run) for word in words)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert sentence.format(run=run) in said


def test_another_profile_reaches_slurms_tasks_and_a_plan_under_it_is_not_kept(
    tmp_path, where, capsys
):
    where, other = [where[0], "--runs", str(tmp_path)], ["--profile", "miniature-sums"]
    assert main(["plan", *where]) == 0
    assert capsys.readouterr().out.startswith("q\n\nprofile 'miniature' (as asked)")
    (kept,) = tmp_path.glob("studies/*.json")
    before = kept.read_bytes()
    assert main(["plan", *where, *other]) == 0 and "'miniature-sums'" in capsys.readouterr().out
    assert kept.read_bytes() == before
    assert main(["run", *where, *other, "--engine", "slurm"]) == 0
    assert f"{' '.join(other)} --retries 1 --only" in capsys.readouterr().out
    after = kept.read_bytes()
    assert after != before and main(["plan", *where]) == 0 and kept.read_bytes() == after


def test_what_only_reads_keeps_no_plan_where_it_cannot(tmp_path, where, capsys, monkeypatch):
    refuse = Mock(side_effect=OSError(errno.EROFS, "Read-only file system", "runs"))
    monkeypatch.setattr(planned, "save_plan", refuse)
    where = [where[0], "--runs", str(tmp_path)]
    assert main(["status", *where]) == 0 and "seed 1" in capsys.readouterr().out
    assert main(["run", *where, "--engine", "slurm"]) == 2
    assert "runs is on a read-only file system" in capsys.readouterr().err


def test_a_list_has_an_engine_for_each_kind_of_run():
    plan = make_plan({"a": {}})
    engine_of = engines("local", Namespace(jobs=None))
    assert engine_of(plan) is engine_of(replace(plan, study="another"))
    assert engine_of(plan) is not engine_of(replace(plan, miniatures=()))


def test_a_missing_extra_is_named_with_its_command(tmp_path, capsys, monkeypatch, printed, where):
    """Also under a profile that is asked for now and was this machine's when the plan was kept."""
    monkeypatch.setitem(sys.modules, "modal", None)
    monkeypatch.delitem(sys.modules, "trl_ablate.study.engines.modal", raising=False)
    words = ["run", where[0], "--runs", str(tmp_path), "--engine", "modal"]
    assert main([*words, "--profile", "auto"]) == 2
    assert "profile 'miniature' is that of this machine" in capsys.readouterr().err
    for more in (["--only", runs_of(printed)[0], "--profile", "miniature"], []):
        assert main([*words, *more]) == 2
        assert capsys.readouterr().err == (
            "error: --engine modal: there is no module 'modal'; pip install 'trl-ablate[modal]'\n"
        )


def test_clean_says_what_it_removes_and_counts_that_alone(tmp_path, capsys, monkeypatch):
    plan, store = make_plan({"a": {"top": 0.8}}), RunStore(tmp_path)
    monkeypatch.setattr(study, "known_runs", lambda options: StudyRuns(plan, store))
    words = ["clean", "abl", "--runs", str(tmp_path)]
    assert main(words) == 0 and capsys.readouterr().out == "0.00 GiB\n"
    used, *_ = (write_run(store, run, {}, iter([]), status="failed") for run in plan.arms[0].runs)
    (used.path / "checkpoint-5").mkdir()
    with (used.path / "checkpoint-5" / "model").open("wb") as file:
        file.truncate(2**30)
    lock = store.lock(used.path.name)

    def said() -> str:
        assert main(words) == 0
        return " ".join(capsys.readouterr().out.split())

    assert lock.acquire()
    monkeypatch.setattr(RunStore, "_in_use", lambda *_: False)  # not yet when they are listed
    assert said().count("would remove") == 3
    words.append("--yes")
    printed = said()
    assert [printed.count(each) for each in ("removed", "kept (in use")] == [2, 1]
    assert printed.endswith("0.00 GiB") and used.path.exists()


def test_the_next_command_is_of_the_same_runs(tmp_path, capsys):
    words = chosen(Namespace(study="abl", runs=tmp_path, profile="own.yaml"))
    plan, store = make_plan({"a": {"top": 0.8}}), RunStore(tmp_path)

    def said() -> str:
        assert ended(words, StudyRuns(plan, store), Outcome()) == 0
        return " ".join(capsys.readouterr().out.split())

    for done, run in enumerate(plan.arms[0].runs):
        assert f"{3 - done} more runs are to do: trl-ablate study run abl --runs" in said()
        assert words.endswith(f"--runs {tmp_path} --profile own.yaml")
        write_run(store, run, {"top": 0.8}, iter([{"step": 1, "eval_rewards": 0.1}]))
    assert "no finished run has logged eval_reward; did you mean 'eval_rewards'?" in said()
    store.directory(run.id).update(status="failed")  # in an earlier command
    assert "1 more runs are to do: trl-ablate study run abl --runs" in said()


def test_runs_that_go_on_elsewhere_are_named_beside_those_that_failed(tmp_path, capsys):
    plan, store = make_plan({"a": {"top": 0.8}}, seeds=[0, 1]), RunStore(tmp_path)
    failed, left = plan.arms[0].runs
    write_run(store, failed, {}, iter([]), status="failed", reason="no luck")
    write_json(store.away(left.id), {"engine": "modal", "call": "c", "folder": "f"})
    outcome = Outcome(failed=[failed.id], left=[left.id])
    assert ended("abl", StudyRuns(plan, store), outcome) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "failed: no luck" in printed
    assert "runs continue on the service; collect them with: trl-ablate study fetch abl" in printed


def test_a_plan_with_looks_has_a_best_and_a_worst_case(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(
        "question: q\narms: [grpo.yaml, std_dev_off.yaml]\nseeds: {looks: [3, 5]}\n"
        "profile: miniature\n"
    )
    where = [str(tmp_path / "study.yaml"), "--runs", str(tmp_path / "runs")]
    assert main(["plan", *where]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "best case, all comparisons decided with 3 seeds: 6 runs: 0 done" in printed
    assert "worst case, comparisons undecided until 5 seeds: 10 runs: 0 done" in printed
    assert main(["run", *where, "--engine", "slurm", "--until", "decided"]) == 0
    seeds = [run.partition("-")[2] for run in runs_of(capsys.readouterr().out)]
    assert seeds == ["seed0", "seed0", "seed1", "seed1", "seed2", "seed2"]  # the first look


def test_hours_on_paper_until_a_run_is_measured(tmp_path, capsys):
    """Of a model on the Hub and a card that is elsewhere; the miniature is no model of the plan."""
    study = tmp_path / "study.yaml"
    words = ["plan", str(study), "--runs", str(tmp_path / "runs")]
    study.write_text(ONE_ARM)
    assert main(words) == 0 and "on paper" not in capsys.readouterr().out
    study.write_text(
        "question: q\narms: [grpo.yaml]\nseeds: [0, 1]\nprofile: h100\n"
        "overrides: {model_name_or_path: allenai/OLMo-2-0425-1B, dataset: gsm8k}\n"
    )
    assert main(words) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    each, total = (float(found) for found in re.findall(r"([\d.]+) hours", line))
    assert line.startswith("on paper") and 0.1 < each < 10
    assert total == pytest.approx(2 * each, abs=1)
