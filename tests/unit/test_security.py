"""What a recipe cannot do: run foreign code unannounced, write outside its run, leak a token."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from tests.conftest import REPOSITORY
from trl_ablate import AblationConfig, ConfigurationError, load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import parse_yaml
from trl_ablate.run import identity
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.masking import MASK, Masker, known_secrets
from trl_ablate.training.callbacks import RolloutWriter

TOKEN, OTHER = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9", "not-of-the-usual-shape-0123456789"


def resolve(**settings):
    return load_recipe("grpo", "miniature", settings)


def test_no_recipe_trusts_remote_code():
    assert AblationConfig.__dataclass_fields__["trust_remote_code"].default is False
    files = [*SHIPPED.rglob("*.yaml")]
    assert len(files) > 50
    assert not [file for file in files if "trust_remote_code" in file.read_text("utf-8")]


TRUST = {"trust_remote_code": True}


@pytest.mark.parametrize("loading", [TRUST, json.dumps(TRUST), None])
def test_trusting_remote_code_is_said_aloud(loading):
    (said,) = resolve(**({"model_init_kwargs": loading} if loading else TRUST)).warnings
    assert "trust_remote_code is on: code from the model's repository runs on this machine" in said


def test_yaml_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for tag in ("object/apply:os.mkdir", "name:os.mkdir", "module:os"):
        for words in (f"!!python/{tag} [planted]", f"{{a: !!python/{tag} [planted]}}"):
            with pytest.raises(ValueError, match="tags .* are not allowed"):
                parse_yaml(words)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_recipe_runs_none_of_its_code(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w')\n")
    code = [f"{tmp_path}/code.py:score"]
    resolved = resolve(reward_funcs=code, tools=code, rollout_func=code[0])
    assert resolved.task.reward_funcs and not ran.exists()


@pytest.mark.parametrize("key", ["arm", "run_name"])
def test_a_name_cannot_lead_out_of_its_folder(key):
    for name in ("../../up", "/etc/x", "a/b", "..", ".", "", "a\\b"):
        with pytest.raises(ConfigurationError, match=f"{key} is .*give a name without slashes"):
            resolve(**{key: name})


def test_what_a_run_names_lies_in_its_folder(tmp_path):
    """`output_dir` is the user's choice; no other setting of a recipe becomes part of a path."""
    resolved = resolve(arm="a..b", study="../../up", project="../../up", output_dir=str(tmp_path))
    run = RunDirectory(Path(resolved.config.output_dir))
    named = [getattr(run, name) for name in dir(RunDirectory) if not name.startswith("_")]
    paths = [path for path in named if isinstance(path, Path)] + [run.rollout_file(-3)]
    assert len(paths) > 6
    assert all(path.resolve().is_relative_to(tmp_path) for path in paths)
    assert Path(resolve(arm="a..b").config.output_dir) == Path("runs/a..b-seed0")


def test_a_token_is_in_no_record(tmp_path, monkeypatch):
    """Environment, command line, settings, code and error all contain one."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SOME_API_KEY", OTHER)
    planted = RunDirectory(tmp_path / "run")
    planted.path.mkdir()
    words = ["train.py", "--hub_token", TOKEN, f"--hub-token={OTHER}"]
    kept = {"stop": ["eos_token"], "run_name": "x"}
    resolved = resolve(hub_token=TOKEN, model_init_kwargs={"token": OTHER}, **kept)
    written = resolved.to_dict()
    assert TOKEN not in str(written) and OTHER not in str(written)
    assert kept.items() <= written["settings"].items()
    masker = Masker(known_secrets([resolved.settings], words, TOKEN))
    planted.write_config(masker.value(written))
    diff = f"+token = '{TOKEN}'\n+key: {OTHER}\n"
    described = {"command": masker.words(words), "git": {"commit": "c", "diff": diff}}
    with (
        pytest.raises(RuntimeError),
        planted.recorded(clean=masker.text, **masker.value(described)),
    ):
        raise RuntimeError(f"401 for {TOKEN} and {OTHER}")
    files = {file.name: file.read_text() for file in planted.path.rglob("*") if file.is_file()}
    assert files.keys() == {"run.json", "resolved_config.json"}
    assert not any(secret in text for text in files.values() for secret in (TOKEN, OTHER))
    assert planted.read()["git"]["diff"].count(MASK) == 2


def test_uncommitted_changes_are_recorded_without_their_tokens(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    (tmp_path / "a.py").write_text("\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "a.py").write_text(f"token = '{TOKEN}'\n")
    (tmp_path / "new.py").touch()
    state = identity.git_state(tmp_path)
    assert state["diff"].startswith("untracked: new.py\ndiff")
    assert TOKEN in state["diff"] and TOKEN not in str(Masker().value(state))
    (tmp_path / "site-packages").mkdir()  # of an installation in somebody's checkout
    (tmp_path / "site-packages" / "b.py").touch()
    assert identity.git_state(tmp_path / "site-packages") is None
    line = f"+token = '{TOKEN}'\n"  # a long diff is cut between lines, and not in a token
    monkeypatch.setattr(identity, "_git", lambda folder, *words: line * 3000 * ("diff" in words))
    diff = identity.git_state(tmp_path)["diff"]
    assert diff.endswith(line) and 100_000 - len(line) < len(diff) <= 100_000


def test_no_rollout_that_is_kept_holds_a_token(tmp_path):
    rows = [{"prompt": TOKEN, "response": [{"role": "assistant", "content": TOKEN}], "reward": 1.0}]
    trainer: Any = SimpleNamespace(latest_rollouts=lambda: rows)
    writer = RolloutWriter(trainer, RunDirectory(tmp_path), 4, 0)
    state = TrainerState(is_world_process_zero=True, global_step=3)
    writer.on_evaluate(SimpleNamespace(report_to=[]), state, TrainerControl())
    (line,) = (tmp_path / "rollouts" / "step_000003.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert kept["prompt"] == kept["response"][0]["content"] == MASK and kept["reward"] == 1.0
    assert rows[0]["prompt"] == TOKEN  # the values for the training are not changed


def test_every_line_of_the_threat_model_names_tests_that_exist():
    page = (REPOSITORY / ".github" / "SECURITY.md").read_text("utf-8")
    lines = re.findall(r"^\| (?!from|---)(.+) \|$", page, re.MULTILINE)
    found = [re.findall(r"`(tests/\S+\.py)::(\w+)`", line.rpartition(" | ")[2]) for line in lines]
    assert len(lines) > 15 and all(found)
    for file, name in sum(found, []):
        assert f"\ndef {name}(" in (REPOSITORY / file).read_text("utf-8"), name
