"""The doctor: what stops a recipe here, what is optional, and the command that fixes it."""

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
    'vllm<=0.31,>=0.22; extra == "vllm"',
    'ruff>=0.14; extra == "dev"',
]
INSTALLED = {
    "torch": "2.13.0+cpu", "trl": "1.16.3", "trackio": "0.43.0", "bitsandbytes": "0.50",
    "math-verify": "0.9.0",
}  # fmt: skip


def resolve(profile, **settings):
    return load_recipe(SHIPPED / "grpo.yaml", profile, settings)


def mends(findings) -> dict[str, str]:
    return {each.what: each.fix for each in findings if each.stops}


def test_each_package_that_is_missing_or_of_a_wrong_version_has_its_command():
    findings = check_packages(REQUIREMENTS, INSTALLED)
    assert mends(findings) == {} and "ruff" not in {each.what for each in findings}
    versions = {**INSTALLED, "trl": "1.20.0", "bitsandbytes": "0.1"}
    del versions["math-verify"]
    findings = check_packages(REQUIREMENTS, versions, wanted={"vllm"})
    assert mends(findings) == {
        "math-verify": "pip install 'math-verify[antlr4_13_2]>=0.9'",
        "trl": "pip install 'trl==1.16.*'",
        "vllm": "pip install 'trl-ablate[vllm]'",
    }
    assert {each.what: each.found for each in findings}["trl"] == "1.20.0 (needs ==1.16.*)"


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


def test_a_look_around_finds_this_machine(tmp_path):
    found = look_around(tmp_path / "not" / "there" / "yet")
    assert found.writable and found.free_gib > 0 and found.memory_gib > 0 and found.cores > 0
    (tmp_path / "file").write_text("")
    assert not look_around(tmp_path / "file" / "run").writable


@pytest.mark.parametrize(
    ("version", "vllm", "wanted", "mended"),
    [
        ("5.17.0", {"vllm": "0.31.0"}, {"vllm"}, set()),
        ("5.23.0", {"vllm": "0.31.0"}, {"vllm"}, {"transformers"}),
        ("5.23.0", {"vllm": "0.31.0"}, set(), set()),
        ("5.23.0", {}, {"vllm"}, {"vllm"}),
    ],
)
def test_what_only_vllm_needs_of_a_package_matters_only_with_vllm(version, vllm, wanted, mended):
    lines = [*REQUIREMENTS, "transformers>=5.10.4", 'transformers<5.18; extra == "vllm"']
    versions = {**INSTALLED, **vllm, "transformers": version}
    found = mends(check_packages(lines, versions, wanted))
    assert found == dict.fromkeys(mended, "pip install 'trl-ablate[vllm]'")
