"""Studies as Hugging Face Jobs: the real client against a Hub on localhost, which starts the
command of a job as a process here. Nothing is sent anywhere."""

import json

import pytest
from huggingface_hub import HfApi

from tests.support.hub_endpoint import Fault, HubEndpoint
from tests.support.studies import FAKE_PROGRAM, numbers, undisturbed
from tests.support.synthetic_study import make_plan
from trl_ablate.cli.study import main
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.engines import hf_jobs, shipping
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

TOKEN = "hf_" + "WriteTokenOfTheTester0123456789ab"
READ_ONLY = "hf_" + "ReadTokenOfTheTester00123456789ab"
ARMS = {"a": {"top": 0.8, "pause": 0.1}}
REPO = "tester/trl-ablate-runs"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hf_jobs, "install", lambda: ["true"])
    monkeypatch.setattr(shipping, "SECONDS_BETWEEN_QUESTIONS", 0.2)
    monkeypatch.setattr(shipping, "PROGRAM", FAKE_PROGRAM)
    people = {TOKEN: "tester", READ_ONLY: "tester"}
    (tmp_path / "jobs").mkdir()
    with HubEndpoint(people, read_only=(READ_ONLY,)) as endpoint:
        endpoint.jobs_folder = tmp_path / "jobs"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
        there = endpoint.url + "".join(template[1:])
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", there)
        yield endpoint
        for process, _ in endpoint.jobs.values():
            process.wait()


def options(*words):
    return main.parse(["run", "std_dev", "--engine", "hf_jobs", *words])[0]


def runner(store, arms, *words, **how):
    plan = make_plan(arms)
    return Runner(StudyRuns(plan, store), hf_jobs.make(options(*words), plan), **how)


@pytest.mark.slow
def test_started_left_and_fetched(hub, tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs")
    arms = {"a": {**ARMS["a"], "waits_for": str(tmp_path / "seen")}}
    monkeypatch.setenv("WANDB_API_KEY", "secret of the tester")
    words = ["--flavor", "l4x1", "--timeout", "90m", "--secrets", "WANDB_API_KEY"]
    left = runner(store, arms, *words, stay=False).run().left
    assert len(left) == len(hub.jobs) == 3
    assert {store.state(run_id).status for run_id in left} == {"running"}
    for _, asked in hub.jobs.values():
        assert (asked["flavor"], asked["timeoutSeconds"]) == ("l4x1", 5400)
        assert asked["secrets"] == {"WANDB_API_KEY": "secret of the tester", "HF_TOKEN": TOKEN}
        assert TOKEN not in json.dumps([asked["command"], asked["environment"]])
    assert hub.repositories[REPO].private
    assert store.away_by_engine(left) == {"hf_jobs": left}
    (tmp_path / "seen").touch()
    for process, _ in hub.jobs.values():
        process.wait()
    study = StudyRuns(make_plan(arms), store)
    engine = hf_jobs.make(main.parse(["fetch", "std_dev"])[0], study.plan)
    done = Runner(study, engine, retries=0, stay=False, only=left).run().done
    assert sorted(done) == sorted(left) and not list(store.path.glob("*.away"))
    assert len(hub.jobs) == 3  # fetching has started none
    assert numbers(store, arms) == undisturbed(tmp_path / "calm", arms)
    commits = {store.directory(run_id).read()["git"]["commit"] for run_id in left}
    assert len(commits) == 1


@pytest.mark.parametrize("asked", [False, True])
def test_checkpoints_come_along_when_asked(hub, tmp_path, asked):
    hub.create(REPO, private=True)
    run = "checkpoint_a/0/checkpoint_a"  # of an arm with this name
    names = {f"{run}/run.json", f"{run}/checkpoint_last/weights"}
    for name in (*names, "checkpoint_a/01/other"):
        (tmp_path / "up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / name).write_text(name)
    HfApi(token=TOKEN).upload_folder(repo_id=REPO, repo_type="dataset", folder_path=tmp_path / "up")
    engine = hf_jobs.make(options(*["--keep_checkpoints"] * asked), make_plan(ARMS))
    engine.download("tester/job0", "checkpoint_a/0", tmp_path / "down")
    found = {str(file.relative_to(tmp_path / "down")) for file in (tmp_path / "down").rglob("*")
             if file.is_file() and ".cache" not in file.parts}  # fmt: skip
    assert found == {name for name in names if asked or "checkpoint_last" not in name}


def test_no_more_jobs_at_once_than_asked_for(hub):
    found = (hf_jobs.make(options(*words), make_plan(ARMS)) for words in ([], ["--jobs", "2"]))
    assert [engine.slots for engine in found] == [3, 2]


@pytest.mark.slow
def test_a_hub_that_stumbles_is_asked_again(hub, tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs")
    monkeypatch.setattr(hf_jobs, "WAITS", [0.01] * 3)
    hub.faults.append(Fault(r"GET /api/jobs", status=503, times=2))
    hub.faults.append(Fault(r"POST .*/commit/", status=409, times=3))
    assert len(runner(store, ARMS, retries=0).run().done) == 3


@pytest.mark.slow
def test_a_job_that_the_hub_ends_is_a_failure_with_its_reason(hub, tmp_path):
    store = RunStore(tmp_path / "runs")
    hub.stages["job0"] = "CANCELED"
    failed = runner(store, ARMS, retries=0).run().failed
    assert len(failed) == 1
    assert "ended as CANCELED" in store.state(failed[0]).reason


@pytest.mark.parametrize(
    ("path_asked", "status"), [("POST /api/jobs", 402), ("POST /api/repos/create", 403)]
)
def test_a_hub_that_refuses_is_reported_in_a_sentence(hub, tmp_path, path_asked, status):
    hub.faults.append(Fault(path_asked, status=status))
    with pytest.raises(ConfigurationError, match=f"hf_jobs: the Hub does not start .*{status}"):
        runner(RunStore(tmp_path / "runs"), ARMS).run()


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
        hf_jobs.make(options(*words), make_plan(ARMS))
