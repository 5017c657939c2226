"""`trl-ablate recipes`, and the names that it lists wherever a recipe or a study is accepted."""

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.cli.recipes import FAMILIES, OTHER, by_family, header, main
from trl_ablate.recipe.places import SHIPPED, recipe_path, shipped_studies, study_path
from trl_ablate.study.definition import load_study


def test_every_recipe_and_study_is_listed_with_its_question(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    recipes = {path.stem for path in SHIPPED.glob("*.yaml")}
    assert listed.keys() == recipes | shipped_studies().keys()
    assert all(len(line.split()) > 2 for line in listed.values())
    rates = [name for name in listed if name.startswith("lr_")]
    assert rates == ["lr_1e-6", "lr_3e-6", "lr_1e-5", "lr_1.5e-5", "lr_1e-4"]  # not as texts


def test_the_page_has_the_tables_of_all_headers_and_each_asks_a_question_of_its_own(capsys):
    assert list(by_family()) == list(FAMILIES) and OTHER not in FAMILIES
    texts = [path.read_text(encoding="utf-8") for path in SHIPPED.glob("*.yaml")]
    questions = [header(text, "Question") for text in texts]
    assert len(set(questions)) == len(texts) and all("?" in question for question in questions)
    assert all(header(text, "Expectation") for text in texts)
    assert main(["--markdown"]) == 0
    page = (REPOSITORY / "recipes" / "REFERENCE.md").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert printed in page and printed.count("\n| `") == len(texts)


def test_one_recipe_is_printed_as_it_is(capsys):
    assert main(["std_dev_off"]) == 0
    assert capsys.readouterr().out == (SHIPPED / "std_dev_off.yaml").read_text(encoding="utf-8")


def test_a_file_of_that_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_path("grpo") == SHIPPED / "grpo.yaml"
    Path("grpo").write_text("extends: grpo.yaml\nbeta: 0.5\n")
    assert load_recipe("grpo", "miniature").config.beta == 0.5
    Path("rloo").mkdir()  # a folder is no recipe
    assert recipe_path("rloo") == SHIPPED / "rloo.yaml"


def test_a_study_by_name_by_folder_and_by_path(tmp_path):
    folder = SHIPPED / "studies" / "std_dev"
    assert study_path("std_dev") == study_path(folder) == study_path(folder / "study.yaml")
    with pytest.raises(ConfigurationError, match="for the shipped study write aa"):
        study_path("elsewhere/aa/study.yaml")
    (tmp_path / "study.yaml").write_text("question: q\narms: [grpo, lr_1.5e-5]\nseeds: [0]\n")
    arms = load_study(tmp_path / "study.yaml").arms
    assert [(arm.name, arm.recipe.name) for arm in arms] == [
        ("grpo", "grpo.yaml"), ("lr_1.5e-5", "lr_1.5e-5.yaml"),
    ]  # fmt: skip
