"""recipes/COMING_FROM.md: its settings resolve, and its programs run."""

import re

from datasets import Dataset

from tests.support.trainers import PROMPTS, SMALL, digits
from trl_ablate.cli import inspect
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.recipe.strict import parse_yaml

PAGE = (SHIPPED / "COMING_FROM.md").read_text(encoding="utf-8")
ONE_LINE, TWO_LINES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| (.+) \| (.+`.*) \|$", PAGE.partition("## From verl")[2], re.MULTILINE)


def test_every_setting_resolves():
    """The settings of a cell, and alternatives, if it ends in other values of the first."""
    assert len(ROWS) > 20
    for _, cell in ROWS:
        recipe, found = re.match(r"recipe `(\w+)`", cell), re.findall(r"`(\w+): ([^`]+)`", cell)
        others = re.findall(r"`(\w+)`(?!:)", cell) if " or `" in cell else []
        assert recipe or found, cell
        for settings in [dict(found), *({found[0][0]: value} for value in others)]:
            given = {name: parse_yaml(value) for name, value in settings.items()}
            config = load_recipe(recipe[1] if recipe else "grpo", "miniature", given).config
            assert given.items() <= vars(config).items(), cell


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
    assert "trl-ablate inspect output" in PAGE and inspect.main(["output"]) == 0
    assert "2 logged steps" in capsys.readouterr().out
    exec(TWO_LINES, names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 2 and trainer.args.baseline == "leave_one_out"
