"""The doctor: what stops a recipe here, what is optional, and the command that fixes it."""

import shlex
from dataclasses import replace

import pytest

from trl_ablate import load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.training.machine import (
    Machine,
    check_machine,
    check_packages,
    look_around,
    packages_wanted,
)

LAPTOP = Machine("3.11.7", cores=2, memory_gib=8, free_gib=200, writable=True)
SERVER = replace(LAPTOP, gpus=(("H100", 79.6),))
GAMING = replace(LAPTOP, gpus=(("RTX 4090", 23.6),))

REQUIREMENTS = [
    "torch<2.14,>=2.11",
    "trl==1.16.*",
    "trackio>=0.43",
    "bitsandbytes>=0.48",
    "math-verify[antlr4_13_2]>=0.9",
    "transformers>=5.10.4",
    'vllm<=0.31,>=0.22; extra == "vllm"',
    'transformers<5.18; extra == "vllm"',
    'ruff>=0.14; extra == "dev"',
]
INSTALLED = {
    "torch": "2.13.0+cpu", "trl": "1.16.3", "trackio": "0.43.0", "bitsandbytes": "0.50",
    "math-verify": "0.9.0", "transformers": "5.23.0",
}  # fmt: skip
OF_VLLM = "pip install 'trl-ablate[vllm]'"


def resolve(profile, **settings):
    return load_recipe(SHIPPED / "grpo.yaml", profile, settings)


def mends(findings) -> dict[str, str]:
    return {each.what: each.fix for each in findings if each.stops}


@pytest.mark.parametrize(
    ("versions", "wanted", "fixes"),
    [
        ({}, set(), {}),
        ({"trl": "1.20.0"}, set(), {"trl": "pip install 'trl==1.16.*'"}),
        ({"math-verify": None}, set(),
         {"math-verify": "pip install 'math-verify[antlr4_13_2]>=0.9'"}),
        ({"bitsandbytes": "0.1"}, set(), {}),
        ({"bitsandbytes": "0.1"}, {"bitsandbytes"},
         {"bitsandbytes": "pip install 'bitsandbytes>=0.48'"}),
        ({}, {"vllm"}, {"vllm": OF_VLLM}),
        # what vLLM alone needs of transformers matters only with vLLM
        ({"vllm": "0.31.0"}, set(), {}),
        ({"vllm": "0.31.0"}, {"vllm"}, {"transformers": OF_VLLM}),
        ({"vllm": "0.31.0", "transformers": "5.17.0"}, {"vllm"}, {}),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_or_of_a_wrong_version_has_its_command(versions, wanted, fixes):
    installed = {name: one for name, one in {**INSTALLED, **versions}.items() if one}
    findings = check_packages(REQUIREMENTS, installed, wanted)
    assert mends(findings) == fixes
    found = {each.what: each.found for each in findings}
    assert "ruff" not in found
    assert found["trl"] == ("1.20.0 (needs ==1.16.*)" if "trl" in versions else "1.16.3")


@pytest.mark.parametrize(
    ("profile", "settings", "wanted"),
    [
        ("miniature", {}, {"trackio"}),
        ("miniature", {"report_to": "none"}, set()),
        ("h100", {}, {"trackio", "vllm"}),
        ("rtx4090", {"use_vllm": False}, {"trackio", "bitsandbytes"}),
        ("miniature", {"optim": "paged_adamw_8bit", "report_to": "none"}, {"bitsandbytes"}),
        ("miniature", {"optim": "lion_32bit", "report_to": "none"}, {"bitsandbytes"}),
        ("miniature", {"optim": "adamw_torch_8bit", "report_to": "none"}, set()),
        ("miniature", {"use_peft": True, "load_in_4bit": True, "push_to_hub": True},
         {"trackio", "bitsandbytes", "peft", "matplotlib"}),
    ],
)  # fmt: skip
def test_only_packages_that_the_recipe_uses_are_wanted(profile, settings, wanted):
    assert packages_wanted(resolve(profile, **settings)) == wanted


@pytest.mark.parametrize(
    ("machine", "profile", "settings", "missing"),
    [
        (SERVER, "h100", {}, {}),
        (GAMING, "rtx4090", {}, {}),
        (LAPTOP, "h100", {}, {"GPU": "--profile miniature"}),
        (LAPTOP, "h100", {"use_cpu": True, "bf16": False}, {}),
        (GAMING, "h100", {}, {"GPU": "--profile rtx4090"}),
        (replace(SERVER, free_gib=20), "h100", {}, {"disk": "--output_dir"}),
        (replace(LAPTOP, free_gib=20), "miniature", {}, {}),
        (replace(LAPTOP, free_gib=0.5), "miniature", {}, {"disk": "--output_dir"}),
        (replace(LAPTOP, writable=False), "miniature", {}, {"disk": "--output_dir"}),
        (LAPTOP, "miniature", {"push_to_hub": True}, {"Hub token": "hf auth login"}),
        (LAPTOP, "miniature", {"trackio_space_id": "x/y"}, {"Hub token": "hf auth login"}),
        (LAPTOP, "miniature", {"push_to_hub": True, "hub_token": "x"}, {}),
        (replace(LAPTOP, token=True), "miniature", {"push_to_hub": True}, {}),
    ],
)  # fmt: skip
def test_what_stops_a_recipe_on_a_machine(machine, profile, settings, missing):
    found = mends(check_machine(resolve(profile, **settings), machine))
    assert found.keys() == missing.keys()
    assert all(words in found[what] for what, words in missing.items())


def test_a_command_that_fixes_can_be_pasted(tmp_path):
    recipe = tmp_path / "my recipe.yaml"
    recipe.write_text("extends: grpo.yaml\n")
    found = mends(check_machine(load_recipe(recipe, "h100"), replace(LAPTOP, free_gib=1)))
    assert [shlex.split(found[what])[2] for what in ("GPU", "disk")] == [str(recipe)] * 2


def test_a_look_around_finds_this_machine(tmp_path):
    found = look_around(tmp_path / "not" / "there" / "yet")
    assert found.writable and found.free_gib > 0 and found.memory_gib > 0 and found.cores > 0
    (tmp_path / "file").write_text("")
    assert not look_around(tmp_path / "file" / "run").writable
