"""`trl-ablate doctor [RECIPE]`: whether a recipe can run on this machine, and what is missing."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from trl_ablate.cli.ending import FAILED, exit_code_of
from trl_ablate.cli.parsing import Parser
from trl_ablate.cli.terminal import show_findings, show_recipe

DESCRIPTION = """\
Print what this machine has and lacks for a recipe, and how to fix it. Nothing is loaded or
downloaded, and the network is not used. Settings are given as --key value, as for `train`."""

EXAMPLES = (
    "trl-ablate doctor",
    "trl-ablate doctor dapo --profile h100",
)

EXIT_CODES = """\
exit codes:
  0     the recipe can run here
  1     it cannot: something is missing
  2     refused: something in the command or the recipe has to change
  130   stopped by Ctrl-C"""

DEFAULT_RECIPE = "grpo"


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(argv), stopped="nothing was changed")


def _main(argv: Sequence[str] | None) -> int:
    options, overrides = parse(argv)
    return diagnose(options.recipe, options.profile, overrides)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the words that are settings."""
    parser = Parser(
        EXAMPLES,
        EXIT_CODES,
        prog="trl-ablate doctor",
        description=DESCRIPTION,
        usage="%(prog)s [RECIPE] [options] [--key value ...]",
    )
    parser.add_profile()
    return parser.parse_recipe(argv)


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
    return FAILED if show_findings(findings) else 0
