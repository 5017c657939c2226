"""Publishing over HTTP: the real client against a Hub on localhost."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from tests.support.commands import script
from tests.support.finished_run import drawn_once, finished_run
from tests.support.folders import contents
from tests.support.hub_endpoint import TOKEN, Fault, of_the_tester
from tests.support.tiny_models import save_tiny_qwen2
from trl_ablate.cli.publish import main
from trl_ablate.hub import PublishError, check_token, client, push_run
from trl_ablate.hub import contents as hub_contents
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import append_jsonl, read_object

REPO, BASE = "tester/lr_1e-4-seed7", "Qwen/Qwen2.5-Math-1.5B"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(hub_contents, "draw_curves", drawn_once)
    monkeypatch.setattr(client, "FIRST_WAIT", 0.05)
    with of_the_tester(monkeypatch, tmp_path) as endpoint:
        yield endpoint


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A run that ended, with six rollout files, optimizer states and pickles."""
    run = finished_run(tmp_path / "run")
    for folder in ("checkpoint_best", "checkpoint_last", "checkpoint-8"):
        (run.path / folder).mkdir(exist_ok=True)
        for name in ("training_args.bin", "optimizer.pt"):
            (run.path / folder / name).write_text(TOKEN)
    for step in range(6):
        run.write_rollouts(step, [{"prompt": "2+2=?", "response": f"</think> {step}"}])
    run.update(git={"commit": "a" * 40, "diff": "-secret plan\n+other plan\n"})
    run.update(command=["/scratch/ann/bin/trl-ablate", "train", "--x=/scratch/ann/a b"])
    config = read_object(run.config_file)
    config["settings"]["stop"] = ["/", "1/2/3", "see https://a.b/c/d"]
    config["files"] = {"/scratch/ann/f.py": ["/scratch/ann/f.py:f", "miniature//scratch/ann/w.py"]}
    run.write_config(config)
    return run


def give_models(run: RunDirectory, folder: Path) -> None:
    """Two models that load, in place of the files of no model."""
    from safetensors.torch import load_file, save_file

    tiny_model = save_tiny_qwen2(folder, num_hidden_layers=2)
    for name, step in (("checkpoint_best", 0.5), ("checkpoint_last", 1.0)):
        shutil.rmtree(run.path / name)
        weights = shutil.copytree(tiny_model, run.path / name) / "model.safetensors"
        moved = {key: value + step for key, value in load_file(weights).items()}
        save_file(moved, weights, metadata={"format": "pt"})


def load(place: str | Path, cache: Path, folder: str = "") -> tuple[bytes, list[int]]:
    """What `from_pretrained` makes of it: all weights, and the tokens of a text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"subfolder": folder, "cache_dir": cache}
    state = AutoModelForCausalLM.from_pretrained(place, **where).state_dict()
    weights = b"".join(state[key].numpy().tobytes() for key in sorted(state))
    return weights, AutoTokenizer.from_pretrained(place, **where)("User: 12+34=?")["input_ids"]


@pytest.mark.slow
def test_published_models_load_bit_for_bit_and_publishing_again_sends_nothing(hub, run, tmp_path):
    give_models(run, tmp_path / "tiny")
    before = contents(run.path)
    done = script(
        "publish", run.path, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"),
        HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"published: {hub.url}/{REPO}" in done.stdout
    assert hub.repositories[REPO].private
    uploads = hub.uploads()
    assert len(uploads) == len(set(uploads)) == 3  # two models, and a picture
    best, last = (load(at, tmp_path) for at in (run.checkpoint_best, run.checkpoint_last))
    assert load(REPO, tmp_path) == load(REPO, tmp_path, "checkpoint_best") == best
    assert load(REPO, tmp_path, "checkpoint_last") == last != best
    hub.requests.clear()
    push_run(run)
    assert hub.commits(REPO) == 1 and hub.uploads() == []
    commit = f"POST /api/models/{REPO}/commit"
    assert not any(line.startswith(commit) for line in hub.requests)
    assert contents(run.path) == before


def test_a_repository_holds_what_a_run_is_and_nothing_private(hub, run):
    link = "https://example.org"
    licence = {"license": "other", "license_name": "research", "license_link": link}
    hub.create(BASE, private=False, card=licence)
    push_run(run)
    files = hub.files(REPO)
    for folder in ("", "checkpoint_best/", "checkpoint_last/"):
        assert {f"{folder}model.safetensors", f"{folder}tokenizer.json"} <= set(files)
    assert sum(path.startswith("rollouts/") for path in files) == 4  # 0, 2 (the best), 3 and 5
    assert "rollouts/step_000002.jsonl" in files
    assert not any(path.endswith((".bin", ".pt")) or "checkpoint-" in path for path in files)
    assert files["curves.png"].startswith(b"\x89PNG")
    assert json.loads(files["run.json"])["git"] == {"commit": "a" * 40, "changed": True}
    card = files["README.md"].decode()
    for said in ("license: other", "license_name: research", f"base_model: {BASE}"):
        assert said in card
    assert "trl-ablate train '--x=…/a b'\n" in card
    assert json.loads(files["run.json"])["command"] == ["bin/trl-ablate", "train", "--x=…/a b"]
    config = json.loads(files["resolved_config.json"])
    assert config["files"] == {"…/f.py": ["…/f.py:f", "miniature/…/w.py"]}
    assert config["settings"]["stop"] == ["/", "1/2/3", "see https://a.b/c/d"]
    everything = b"".join(hub.received)
    for private in (b"secret plan", b"workstation-of-somebody", b"/ann"):
        assert private not in everything


def test_a_planted_token_is_in_no_byte_that_is_sent(hub, run, monkeypatch):
    planted = {
        "command": "hf_" + "CommandToken000000000000000000000",
        "equals": "verysecretword",
        "setting": "another-secret-word",
        "nested": "a-third-secret-word",
        "shape": "hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b",
        "environment": "0123456789abcdef-of-the-environment",
    }
    monkeypatch.setenv("WANDB_API_KEY", planted["environment"])
    words = ["--hub_token", planted["command"], f"--push_to_hub_token={planted['equals']}"]
    spoken = f"used {planted['shape']} and {planted['environment']}, {planted['setting']}, {TOKEN}"
    run.update(command=["scripts/train.py", *words], reason=spoken, git={"diff": spoken})
    config = read_object(run.config_file)
    config["config"]["hub_token"] = config["settings"]["hub_token"] = planted["setting"]
    config["changes"]["hub_token"] = [None, planted["setting"]]
    config["settings"]["model_init_kwargs"] = {"token": planted["nested"]}
    config["task"]["dataset"] = f"https://somebody:{planted['equals']}@example.org/{TOKEN}"
    run.write_config(config)
    append_jsonl(run.path / "rollouts" / "step_000005.jsonl", {"response": spoken})
    run.append_metrics({"step": 6, "grpo_step": 6, "seconds": 9, "note": spoken})
    push_run(run)
    sent = b"".join(hub.received) + b"".join(hub.files(REPO).values())
    for name, secret in {**planted, "own": TOKEN}.items():
        assert secret.encode() not in sent, name
    assert b"--hub_token" in sent


def test_a_model_file_with_a_token_is_refused_before_anything_is_sent(hub, run):
    (run.path / "checkpoint_last" / "special_tokens_map.json").write_text(f'{{"x": "{TOKEN}"}}')
    with pytest.raises(ValueError, match="special_tokens_map.json contains"):
        push_run(run)
    assert hub.requests == []


@pytest.mark.slow
def test_only_what_changed_is_sent_and_what_went_is_removed(hub, run):
    push_run(run)
    published, notes = hub.repositories[REPO], hub.keep(b"notes")
    names = ("NOTES.md", "notes/run.json", "alerts.jsonl", "chat_template.json")
    mine = {**dict.fromkeys(names, notes), "model-2.safetensors": hub.keep(b"old", large=True)}
    published.commit("main", published.commits[published.branches["main"]] | mine)
    hub.requests.clear()
    shutil.rmtree(run.path / "rollouts")
    shutil.rmtree(run.path / "checkpoint_last")
    push_run(run)
    assert hub.uploads() == []
    assert hub.commits(REPO) == 3
    files = hub.files(REPO)
    gone = ("rollouts/", "checkpoint_last/", "model-2.safetensors", "alerts", "chat_template.json")
    assert not [path for path in files if path.startswith(gone)]
    assert files["NOTES.md"] == files["notes/run.json"] == b"notes"


@pytest.mark.slow
def test_private_until_asked_and_public_only_when_asked(hub, run):
    push_run(run)
    assert hub.repositories[REPO].private
    push_run(run, private=False)
    assert not hub.repositories[REPO].private
    assert hub.commits(REPO) == 1
    with pytest.raises(PublishError, match="is already public; give --public"):
        push_run(run)
    push_run(run, repo_id="named", private=False)
    assert not hub.repositories["tester/named"].private


@pytest.mark.slow
def test_a_revision_is_a_branch_of_its_own(hub, run):
    assert push_run(run, revision="seed3") == f"{hub.url}/{REPO}/tree/seed3"
    assert set(hub.files(REPO)) == {".gitattributes"}
    assert b'revision="seed3")' in hub.files(REPO, "seed3")["README.md"]
    push_run(run, revision="seed3")
    assert hub.commits(REPO) == 1
    push_run(run, revision="")
    assert hub.repositories[REPO].branches.keys() == {"main", "seed3"}


@pytest.mark.slow
def test_a_passing_failure_is_retried_and_a_lasting_one_is_one_sentence(hub, run):
    hub.faults.append(Fault("/commit/", 503, times=2))
    push_run(run)
    assert hub.commits(REPO) == 1
    for status, said in (
        (401, "does not accept the Hugging Face token; make one with write access"),
        (503, "the Hub has an internal error .HTTP 503.; try again later"),
    ):
        hub.faults[:] = [Fault("/commit/", status)]
        (run.path / "alerts.jsonl").write_text(f'{{"status": {status}}}\n')
        with pytest.raises(PublishError, match=said):
            push_run(run)


def test_the_command_ends_in_one_sentence(hub, run, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "")
    assert main([str(run.path)]) == 1
    printed = capsys.readouterr()
    assert "there is no Hugging Face token" in printed.err and printed.err.count("\n") == 1
    assert "published" not in printed.out
    monkeypatch.setenv("HF_TOKEN", f"“{TOKEN}”")
    assert main([str(run.path)]) == 1
    assert "has a character that no token has" in capsys.readouterr().err
    assert main(["nosuch"]) == 2 and "nosuch/run.json does not exist" in capsys.readouterr().err
    assert main([str(run.path), "--repo_id", "a b"]) == 2
    assert capsys.readouterr().err.startswith("error: 'a b' is no name of a repository; give OWNER")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for asked in ("/whoami", f"/api/models/{REPO}"):  # with JSON, but not the Hub's
        hub.faults[:] = [Fault(asked, 200)]
        assert main([str(run.path)]) == 1
        assert "it is not a Hugging Face Hub; check HF_ENDPOINT" in capsys.readouterr().err
    monkeypatch.setattr(HfApi, "whoami", lambda self: ["x"])
    with pytest.raises(PublishError, match="it is not a Hugging Face Hub"):
        check_token()
    with pytest.raises(KeyError), client.failures_in_words(REPO):
        raise KeyError("of our own")
