"""What this machine has and lacks for a recipe, and how to fix it."""

from pathlib import Path

from trl_ablate.cli.terminal import show_findings, show_recipe
from trl_ablate.recipe.places import SHIPPED


def diagnose(recipe: str | None, profile: str, overrides: list[str]) -> int:
    """Print every finding; 0 if the recipe can run here, or else 1."""
    from trl_ablate.training import doctor as checks

    requirements, versions = checks.declared(), checks.installed()
    findings = checks.check_packages(requirements, versions)
    if not any(finding.stops for finding in findings):  # or else no recipe resolves
        from trl_ablate.recipe.resolving import load_recipe

        resolved = load_recipe(recipe or SHIPPED / "grpo.yaml", profile, overrides)
        show_recipe(resolved, everything=False)
        machine = checks.look_around(Path(str(resolved.config.output_dir)))
        wanted = checks.packages_wanted(resolved)
        findings = checks.check_packages(requirements, versions, wanted)
        findings += checks.check_machine(resolved, machine)
    return show_findings(findings)
