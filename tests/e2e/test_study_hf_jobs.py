"""Studies as Hugging Face Jobs: the real client against a Hub on localhost, which starts the
command of a job as a process here. Nothing is sent anywhere."""

import json

import pytest
from huggingface_hub import HfApi

from tests.support.hub_endpoint import TOKEN, Fault, of_the_tester
from tests.support.studies import FAKE_PROGRAM, numbers, run_here, undisturbed
from tests.support.synthetic_study import make_plan
from trl_ablate.cli.study import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.engines import hf_jobs, shipping
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

REPO = "tester/trl-ablate-runs"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(hf_jobs, "install", lambda: ["true"])
    monkeypatch.setattr(hf_jobs, "WAITS", [0.01] * 3)
    monkeypatch.setattr(shipping, "SECONDS_BETWEEN_QUESTIONS", 0.2)
    monkeypatch.setattr(shipping, "PROGRAM", FAKE_PROGRAM)
    (tmp_path / "jobs").mkdir()
    with of_the_tester(monkeypatch, tmp_path) as endpoint:
        endpoint.jobs_folder = tmp_path / "jobs"
        yield endpoint
        for process, _ in endpoint.jobs.values():
            process.wait()


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "runs")


def engine(plan, *words):
    return hf_jobs.make(main.parse(["run", "std_dev", "--engine", "hf_jobs", *words])[0], plan)


@pytest.mark.slow
def test_started_left_and_fetched_from_a_hub_that_stumbles(hub, store, tmp_path, monkeypatch):
    plan = make_plan({"a": {"top": 0.8, "waits_for": str(tmp_path / "seen")}}, seeds=[0, 1])
    monkeypatch.setenv("WANDB_API_KEY", "secret of the tester")
    hub.faults.append(Fault(r"GET /api/jobs", status=503, times=2))
    hub.faults.append(Fault(r"POST .*/commit/", status=409, times=3))
    words = ["--flavor", "l4x1", "--timeout", "90m", "--secrets", "WANDB_API_KEY"]
    left = Runner(StudyRuns(plan, store), engine(plan, *words), stay=False).run().left
    assert len(left) == len(hub.jobs) == 2
    assert {store.state(run_id).status for run_id in left} == {"running"}
    for _, asked in hub.jobs.values():
        assert (asked["flavor"], asked["timeoutSeconds"]) == ("l4x1", 5400)
        assert asked["secrets"] == {"WANDB_API_KEY": "secret of the tester", "HF_TOKEN": TOKEN}
        assert TOKEN not in json.dumps([asked["command"], asked["environment"]])
    assert hub.repositories[REPO].private
    assert store.away_by_engine(left) == {"hf_jobs": left}
    with pytest.raises(
        ConfigurationError, match="is at hf_jobs; collect it with `trl-ablate study"
    ):
        run_here(store, plan)
    (tmp_path / "seen").touch()
    for process, _ in hub.jobs.values():
        process.wait()
    fetching = hf_jobs.make(main.parse(["fetch", "std_dev"])[0], plan)
    done = Runner(StudyRuns(plan, store), fetching, retries=0, only=left).run().done
    assert sorted(done) == sorted(left) and not list(store.path.glob("*.away"))
    assert len(hub.jobs) == 2  # fetching has started none
    assert numbers(store, plan) == undisturbed(tmp_path / "calm", plan)
    commits = {store.directory(run_id).read()["git"]["commit"] for run_id in left}
    assert len(commits) == 1


PLAN = make_plan({"a": {"top": 0.8}}, seeds=[0])


def test_a_job_that_the_hub_ends_is_a_failure_with_its_reason(hub, store):
    hub.stages["job0"] = "CANCELED"
    (failed,) = Runner(StudyRuns(PLAN, store), engine(PLAN), retries=0).run().failed
    assert "ended as CANCELED" in store.state(failed).reason


def test_a_token_that_no_longer_counts_ends_no_run(hub, store):
    hub.faults.append(Fault("GET /api/jobs", status=401))
    with pytest.raises(ConfigurationError, match="the Hub does not show job .*; check the token"):
        Runner(StudyRuns(PLAN, store), engine(PLAN), retries=0).run()
    assert {store.state(run_id).status for run_id in PLAN.runs()} == {"running"}


@pytest.mark.parametrize("asked", [False, True])
def test_checkpoints_come_along_when_asked(hub, tmp_path, asked):
    hub.create(REPO, private=True)
    run = "checkpoint_a/0/checkpoint_a"  # of an arm with this name
    names = {f"{run}/run.json", f"{run}/checkpoint_last/weights"}
    for name in (*names, "checkpoint_a/0/bundle.tar.gz", "checkpoint_a/01/other"):
        (tmp_path / "up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / name).write_text(name)
    HfApi(token=TOKEN).upload_folder(repo_id=REPO, repo_type="dataset", folder_path=tmp_path / "up")
    asking = engine(PLAN, "--jobs", "2", *["--keep_checkpoints"] * asked)
    assert (engine(PLAN).slots, asking.slots) == (1, 2)
    asking.download("tester/job0", "checkpoint_a/0", tmp_path / "down")
    found = {str(file.relative_to(tmp_path / "down")) for file in (tmp_path / "down").rglob("*")
             if file.is_file() and ".cache" not in file.parts}  # fmt: skip
    assert found == {name for name in names if asked or "checkpoint_last" not in name}


@pytest.mark.parametrize(
    ("asked", "status"), [("POST /api/jobs", 402), ("POST /api/repos/create", 403)]
)
def test_a_hub_that_refuses_is_reported_in_a_sentence(hub, store, asked, status):
    hub.faults.append(Fault(asked, status=status))
    with pytest.raises(ConfigurationError, match=f"hf_jobs: the Hub does not start .*{status}"):
        Runner(StudyRuns(PLAN, store), engine(PLAN)).run()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--secrets", "NONE"], "--secrets NONE: there is no such environment"),
        (["--timeout", "long"], "--timeout is 'long'; give a number and s, m, h"),
        ([], "there is no Hugging Face token; run `hf auth"),
    ],
)
def test_what_cannot_start_a_job_is_refused(hub, monkeypatch, words, sentence):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigurationError, match=sentence):
        engine(PLAN, *words)
