"""recipes/COMING_FROM.md: its settings resolve, its programs and commands run."""

import re
import shlex
from pathlib import Path

import pytest
from datasets import Dataset

from tests.support.trainers import PROMPTS, SMALL, digits
from trl_ablate.cli import inspect, study, train
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.recipe.strict import parse_yaml

PAGE = (SHIPPED / "COMING_FROM.md").read_text(encoding="utf-8")
ONE_LINE, TWO_LINES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).splitlines()
ROWS = re.findall(r"^\| (.+) \| (.+`.*) \|$", PAGE.partition("## From verl")[2], re.MULTILINE)
MINE = "trl-ablate train my_task/grpo.yaml"
assert len(ROWS) > 20
STUDIES = re.findall(r"for STUDY in (.+?);", PAGE)[0].split()


@pytest.mark.parametrize("cell", [cell for _, cell in ROWS])
def test_every_setting_resolves(cell):
    """The settings of a cell, and alternatives, if it ends in other values of the first."""
    recipe, found = re.match(r"recipe `(\w+)`", cell), re.findall(r"`(\w+): ([^`]+)`", cell)
    others = re.findall(r"`(\w+)`(?!:)", cell) if " or `" in cell else []
    assert recipe or found, cell
    for settings in [dict(found), *({found[0][0]: value} for value in others)]:
        given = {name: parse_yaml(value) for name, value in settings.items()}
        file = SHIPPED / f"{recipe[1] if recipe else 'grpo'}.yaml"
        config = load_recipe(file, "miniature", given).config
        assert all(getattr(config, name) == value for name, value in given.items())


def test_the_programs_train_and_their_log_is_inspected(tmp_path, monkeypatch, tiny_model, capsys):
    monkeypatch.chdir(tmp_path)
    names = {
        "model": tiny_model,
        "reward": digits,
        "dataset": Dataset.from_dict({"prompt": PROMPTS}),
        "settings": {**SMALL, "output_dir": "output", "max_completion_length": 12, "max_steps": 2},
    }
    exec(ONE_LINE, names)
    assert names["trainer"].state.global_step == 2
    assert COMMANDS[1] == "trl-ablate inspect output"
    assert inspect.main(["output"]) == 0
    assert "output: 2 logged steps" in capsys.readouterr().out.replace("guard: 2", "output: 2")
    exec(TWO_LINES, names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 2 and trainer.args.baseline == "leave_one_out"


def test_the_commands_are_accepted(tmp_path, monkeypatch, capsys):
    """Each as it stands, but for an option that ends it before the first step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "spare_models", lambda: None)  # it would hold for the tests after
    Path("my_task").mkdir()
    Path("my_task/grpo.yaml").write_text("model_name_or_path: m\nreward_funcs: [accuracy_reward]\n"
                                    "dataset_name: d\noutput_dir: out\n")  # fmt: skip
    for line in COMMANDS:
        if line.startswith("trl-ablate train"):
            assert train.main([*shlex.split(line)[2:], "--dry_run"]) == 0, line
    for name in STUDIES:
        assert study.main(["plan", name, "--profile", "h100"]) == 0, name
    assert "cost" in capsys.readouterr().out
