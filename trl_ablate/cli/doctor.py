"""`trl-ablate doctor [RECIPE]`: whether a recipe can run on this machine, and what is missing."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import Command, Parser, exit_codes, leading
from trl_ablate.cli.terminal import show_findings, show_recipe

DESCRIPTION = """\
Print what this machine has and lacks for a recipe, and how to fix it. Nothing is loaded or
downloaded, and the network is not used. Settings are given as --key value, as for `train`."""

EXAMPLES = (
    "trl-ablate doctor",
    "trl-ablate doctor dapo --profile h100",
)

DEFAULT_RECIPE = "grpo"


def add_options(parser: Parser) -> None:
    parser.add_profile()


def run(options: argparse.Namespace, words: list[str]) -> int:
    recipe = next(iter(leading(words)), None)
    return diagnose(recipe, options.profile, words)


def diagnose(recipe: str | None, profile: str = "auto", overrides: Iterable[str] = ()) -> int:
    """Print what this machine has and lacks for a recipe; 0 if the recipe can run here, else 1."""
    from trl_ablate.training import machine as checks

    requirements, versions = checks.declared(), checks.installed()
    findings = checks.check_packages(requirements, versions)
    if not any(finding.stops for finding in findings):  # or else no recipe resolves
        from trl_ablate.recipe.resolving import load_recipe

        resolved = load_recipe(recipe or DEFAULT_RECIPE, profile, overrides)
        show_recipe(resolved, everything=False)
        machine = checks.look_around(Path(str(resolved.config.output_dir)))
        wanted = checks.packages_wanted(resolved)
        findings = checks.check_packages(requirements, versions, wanted)
        findings += checks.check_machine(resolved, machine)
    return FAILED if show_findings(findings) else DONE


main = Command(
    "doctor",
    DESCRIPTION,
    EXAMPLES,
    add_options,
    run,
    stopped="nothing was changed",
    settings="[RECIPE] [options] [--key value ...]",
    codes=exit_codes(
        "the recipe can run here", "it cannot: something is missing", "the command or the recipe"
    ),
)
