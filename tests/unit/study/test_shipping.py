"""What is sent to another machine with a run, what is refused, and how a run is fetched.

That its folder is the old or the new one whenever a copy is cut off: `tests/unit/run/test_folders`.
"""

from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from packaging.requirements import Requirement

from trl_ablate import miniature
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import PACKAGE
from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.engines import PROGRAM, Job, shipping
from trl_ablate.study.engines.hf_jobs import JobsEngine
from trl_ablate.study.engines.shipping import DetachedProcess, copy_code, pack, requirements

httpx = import_module(HTTPError.__module__)  # httpx2 from huggingface_hub 2 on


def job(folder: Path) -> Job:
    recipe = folder / "grpo.yaml"
    recipe.write_text("beta: 0.0\n")
    (store := folder / "store").mkdir()
    return Job([str(recipe), "--seed", "1"], store / "run", folder / "log", 0, folder / "away")


def test_a_run_is_fetched_under_the_name_that_it_was_sent_with(tmp_path):
    """Its arm was renamed since then."""

    def download(call: str, folder: str, target: Path) -> None:
        (target / folder / "former-1").mkdir(parents=True)
        (target / folder / "former-1" / "run.json").write_text("{}")
        (target / folder / "former-1.log").write_text("trained\n")

    def answer(call: str) -> int:
        raise TimeoutError("24 hours are over")

    one, engine = job(tmp_path), SimpleNamespace(answer=answer, download=download, name="modal")
    one.away.write_text('{"call": "c", "folder": "former-1/0123"}')
    one.directory.mkdir()
    (one.directory / "notes.txt").write_text("mine")
    found: Any = engine
    assert DetachedProcess(one, found).poll() == 1
    assert {path.name for path in one.directory.iterdir()} == {"run.json", "notes.txt"}
    assert not one.away.exists()
    assert one.log.read_text() == "trained\nmodal: TimeoutError: 24 hours are over\n"


def test_a_call_has_its_note_before_it_is_made(tmp_path, monkeypatch):
    """A failed call leaves none; one whose name could not be written is not made again."""
    one, engine = job(tmp_path), JobsEngine.__new__(JobsEngine)
    monkeypatch.setattr(shipping, "pack", lambda job: None)
    monkeypatch.setattr(engine, "spawn", spawn := Mock(side_effect=[OSError("no"), "c", "d"]))
    with pytest.raises(OSError, match="no"):
        engine.start(one, 0)
    assert not one.away.exists()
    write = shipping.write_json

    def full(path: Path, note: dict) -> None:
        if "call" in note:
            raise OSError(28, "full")
        write(path, note)

    monkeypatch.setattr(shipping, "write_json", full)
    with pytest.raises(OSError, match="full"):
        engine.start(one, 0)
    with pytest.raises(ConfigurationError, match="names no call; see whether"):
        engine.start(one, 0)
    assert spawn.call_count == 2


def of_the_hub(status: int) -> Exception:
    request = httpx.Request("GET", "https://huggingface.co")
    return HfHubHTTPError("no", response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(104, "reset by peer"), True),
        (httpx.ReadTimeout("slow"), True),
        (of_the_hub(503), True),
        (of_the_hub(404), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_a_download_that_fails_in_passing_is_tried_again(tmp_path, monkeypatch, error, passes):
    monkeypatch.setattr(shipping, "SECONDS_BETWEEN_QUESTIONS", 0.0)
    one = job(tmp_path)
    one.away.write_text('{"call": "c", "folder": "run/0123"}')
    engine = JobsEngine.__new__(JobsEngine)
    monkeypatch.setattr(engine, "answer", lambda call: 0)
    monkeypatch.setattr(engine, "download", Mock(side_effect=[error, None]))
    process = DetachedProcess(one, engine)
    with nullcontext() if passes else pytest.raises(type(error)):
        assert process.poll() is None
    assert one.away.exists() and process.poll() == 0 and not one.away.exists()


@pytest.mark.parametrize("asked", [False, True])
def test_files_of_any_size_come_back_from_a_cluster(tmp_path, monkeypatch, asked):
    ray = pytest.importorskip("trl_ablate.study.engines.ray", reason="ray is not installed")
    monkeypatch.setattr(ray, "PIECE_BYTES", 4)
    one, there = job(tmp_path), RunDirectory(tmp_path / "there")
    files = {"run.json": "a long record", "rollouts/empty": "", "metrics.jsonl": "rows",
             "log": "a file of the user", "checkpoint-5/weights": "heavy"}  # fmt: skip
    for name, text in files.items():
        (there.path / name).parent.mkdir(parents=True, exist_ok=True)
        (there.path / name).write_text(text)
    worker, results = ray.Worker.__new__(ray.Worker), ray.Results(one)
    worker._directory, worker._log, worker._checkpoints = there, there.path / "log", asked
    worker._complete = worker._process = SimpleNamespace(wait=lambda *seconds: 3)
    results.begin()
    codes = [results.take(piece) for piece in worker.follow()]
    assert codes == [None] * (len(codes) - 1) + [3] and one.log.read_text() == files["log"]
    found = {str(path.relative_to(one.directory)): path.read_text()
             for path in one.directory.rglob("*") if path.is_file()}  # fmt: skip
    assert found == {name: files[name] for name in files if asked or "checkpoint" not in name}


@pytest.mark.parametrize("wrote", [True, False])
def test_an_earlier_run_stays_until_a_cluster_sends_the_new_one(tmp_path, wrote):
    """Also if that is refused and writes nothing; files of the user stay at any rate."""
    ray = pytest.importorskip("trl_ablate.study.engines.ray", reason="ray is not installed")
    one = job(tmp_path)
    mine, weights = one.directory / "own" / "notes.txt", one.directory / "checkpoint-500" / "model"
    for file in (mine, weights, one.directory / "run.json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    results = ray.Results(one)
    results.begin()
    results.take((ray.LOG, b"error: no such profile\n"))
    assert weights.exists()
    if wrote:
        results.take((ray.METRICS, b'{"step": 1}\n'))
        assert not weights.exists() and RunDirectory(one.directory).read()["status"] == "running"
        results.take(("./run.json", b'{"status": "finished"}'))
    assert results.take(2) == 2
    assert mine.exists() and weights.exists() is not wrote
    assert RunDirectory(one.directory).read() == ({"status": "finished"} if wrote else {})


def test_what_travels_is_the_package_as_it_is_installed(tmp_path):
    copy_code(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trl_ablate"]
    base = miniature.build().relative_to(PACKAGE)
    for name in ("__main__.py", "prompts/r1_zero.txt", "shipped/grpo.yaml",
                 "shipped/profiles/miniature.yaml", base / "model.safetensors"):  # fmt: skip
        assert (tmp_path / "trl_ablate" / name).exists(), name
    for pattern in ("*.png", "*.pyc", "report.json"):
        assert not list(tmp_path.rglob(pattern))
    assert {"torch", "vllm"} <= {Requirement(line).name for line in requirements("vllm")}


def test_the_lock_of_an_editor_is_not_sent(tmp_path, monkeypatch):
    """Emacs keeps a broken link beside a file with changes."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / ".#losses.py").symlink_to("somebody@host.12:34")
    monkeypatch.setattr(shipping, "CODE", {tmp_path / "code": "trl_ablate"})
    copy_code(tmp_path / "sent")
    assert [*(tmp_path / "sent").rglob("*")] == [tmp_path / "sent" / "trl_ablate"]
    one = job(tmp_path)
    (tmp_path / ".#grpo.yaml").symlink_to("somebody@host.12:34")
    assert pack(one).files.keys() == {"recipes/grpo.yaml"}


def test_the_worker_of_a_run_is_found_when_its_arm_was_renamed(tmp_path, monkeypatch):
    ray = pytest.importorskip("trl_ablate.study.engines.ray", reason="ray is not installed")
    monkeypatch.setattr(ray, "RayProcess", Mock())
    monkeypatch.setattr(ray.ray, "remote", remote := Mock())
    engine = ray.RayEngine.__new__(ray.RayEngine)
    engine._needs, engine._checkpoints, one = {"CPU": 1}, False, job(tmp_path)
    for directory in (one.directory, one.directory.with_name("renamed")):
        engine.start(replace(one, directory=directory), 0)
    first, second = (call.kwargs["name"] for call in remote().options.call_args_list)
    assert first == second


OWN = """
extends: grpo.yaml
dataset: data
template: prompt.txt
reward_funcs: ['code/reward.py:score', {path: r2.py:other, kwargs: {file: /x.py}}, accuracy_reward]
tools: ['code/reward.py:tool']
eval_sets: {more: {dataset: more.jsonl}}
"""
OWN_FILES = ("code/reward.py", "code/helper.py", "r2.py", "prompt.txt", "more.jsonl",
             "data/train.jsonl", "data/validation.jsonl")  # fmt: skip


def own_task(folder):
    one = job(folder)
    for name in (*OWN_FILES, "not_named.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / "mine.yaml").write_text(OWN)
    return replace(one, words=[str(folder / "mine.yaml"), *one.words[1:]])


def test_own_code_prompts_and_data_are_sent(tmp_path):
    one = own_task(tmp_path)
    (tmp_path / "late.jinja").write_text("{{ question }}")  # a study's override
    words = [*one.words, "--template=late.jinja", '--tools=["code/reward.py:tool"]']
    bundle = pack(replace(one, words=words))
    assert bundle.program == PROGRAM == ("-m", "trl_ablate", "train")
    assert bundle.words[:3] == ("recipes/mine.yaml", "--seed", "1")
    assert bundle.files["recipes/grpo.yaml"] == b"beta: 0.0\n"
    own = {name for name in bundle.files if not name.endswith(".yaml")}
    assert own == {f"recipes/{name}" for name in (*OWN_FILES, "late.jinja")}
    assert bundle.files["recipes/code/helper.py"] == b"code/helper.py"


@pytest.mark.parametrize("place", ["recipes/code/reward.py", "recipes/mine.yaml", "the command"])
def test_no_secret_is_sent(tmp_path, place):
    one, secret = own_task(tmp_path), "hf_" + "SomebodysOwnToken0123456789ab"
    if place.startswith("recipes"):
        with (tmp_path / place.removeprefix("recipes/")).open("a") as file:
            file.write(f"\nhub_token: {secret}\n")
    words = [*one.words, *(["--hub_token", secret] if place == "the command" else [])]
    with pytest.raises(ConfigurationError, match=f"{place}.* holds a secret, and would be sent"):
        pack(replace(one, words=words))


def test_a_base_and_a_profile_are_sent_with_their_files(tmp_path):
    home, one, named = tmp_path / "task", job(tmp_path), "template: ask.txt\n"
    mine = "extends: bases/own.yml\nprofile: gpu/big.yaml\n"
    files = {"mine.yml": mine, "bases/own.yml": named, "bases/ask.txt": "a",
             "gpu/big.yaml": named, "gpu/ask.txt": "b"}  # fmt: skip
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)

    def packed(profile: Path | str):
        return pack(replace(one, words=[str(home / "mine.yml"), "--profile", str(profile)]))

    for profile in (home / "gpu/big.yaml", "auto"):
        bundle = packed(profile)
        assert set(bundle.files) == {f"recipes/{name}" for name in files}
        assert bundle.words == ("recipes/mine.yml", "--profile", "recipes/gpu/big.yaml")
    assert packed(tmp_path / "grpo.yaml").words[2] == "profile.yaml"  # outside, names no file
    (tmp_path / "grpo.yaml").write_text("template: task/bases/ask.txt\n")
    with pytest.raises(ConfigurationError, match="is outside the recipe's folder"):
        packed(tmp_path / "grpo.yaml")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("extends: ../base.yaml", "base.yaml, which recipe .* is outside the recipe's folder"),
        ("extends: HERE/base.yaml", "extends: .*/task/base.yaml is an absolute path"),
        ("tools: ['HERE/own.py:f']", "tools: .*/task/own.py is an absolute path"),
        ("template: ../outside.txt", "outside.txt, which recipe .* is outside the recipe's folder"),
        ("reward_funcs: [lonely.score]", "module 'lonely' is in the working directory"),
        ("dataset: big.jsonl", "have 60 MB, and 50 MB can be sent .*big.jsonl on the Hub"),
    ],
)
def test_what_cannot_be_sent_is_refused(tmp_path, monkeypatch, setting, sentence):
    home = tmp_path / "task"
    home.mkdir()
    (tmp_path / "outside.txt").write_text("{question}")
    (tmp_path / "lonely.py").write_text("")
    (tmp_path / "base.yaml").write_text("beta: 0.1\n")
    (home / "own.py").write_text("")
    with (home / "big.jsonl").open("wb") as file:
        file.truncate(60_000_000)
    monkeypatch.chdir(tmp_path)
    one = job(home)
    (home / "grpo.yaml").write_text(setting.replace("HERE", str(home)))
    with pytest.raises(ConfigurationError, match=sentence):
        pack(one)
