"""Print what this machine has and lacks for a recipe, and how to fix it.

Nothing is loaded or downloaded, and the network is not used. Settings are given as --key value, as
for `train`.

examples:
  trl-ablate doctor
  trl-ablate doctor dapo --profile h100
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import PROFILE, command, leading
from trl_ablate.cli.terminal import show_findings, show_recipe

if TYPE_CHECKING:
    from trl_ablate.recipe.resolving import Resolved
    from trl_ablate.reward_specs import RewardSpec
    from trl_ablate.training.machine import Finding

DEFAULT_RECIPE = "grpo"


@command(
    PROFILE,
    settings="[RECIPE] [options] [--key value ...]",
    codes={0: "the recipe can run here", 1: "it cannot: something is missing"},
)
def main(options: argparse.Namespace, words: list[str]) -> int:
    from trl_ablate.training import machine as checks

    recipe, *more = leading(words) or [DEFAULT_RECIPE]
    options.parser.refuse(more)
    requirements, versions = checks.declared(), checks.installed()
    findings = checks.check_packages(requirements, versions)
    if not any(finding.stops for finding in findings):  # or else no recipe resolves
        from trl_ablate.recipe.resolving import load_recipe

        resolved = load_recipe(recipe, options.profile, words)
        show_recipe(resolved, everything=False)
        machine = checks.look_around(Path(str(resolved.config.output_dir)))
        wanted = checks.packages_wanted(resolved)
        findings = checks.check_packages(requirements, versions, wanted)
        findings += checks.check_machine(resolved, machine)
        known = {one.what for one in findings if one.stops}
        findings += [one for one in checks.lacking(resolved) if one.what not in known]
        findings += [*_wrong_files(resolved), *_on_paper(resolved)]
    return FAILED if show_findings(findings) else DONE


def _wrong_files(resolved: "Resolved") -> Iterator["Finding"]:
    """Data that do not exist, and files of rewards that do not or are no Python."""
    from trl_ablate.data.row_files import check_there
    from trl_ablate.named_code import check_file
    from trl_ablate.training.machine import refusals

    def check_reward(spec: "RewardSpec") -> None:
        if spec.place is not None and spec.place.is_file:
            check_file(spec.place, "reward_funcs")

    yield from refusals("data", check_there, resolved.task.dataset)
    for spec in resolved.task.own_rewards:
        yield from refusals("reward", check_reward, spec)


def _on_paper(resolved: "Resolved") -> list["Finding"]:
    """What `trl-ablate plan` says of the recipe; nothing if it knows no such model or card."""
    from trl_ablate.plan.recipes import plan_recipe
    from trl_ablate.plan.sizes import GIB
    from trl_ablate.training.machine import Finding

    answer = plan_recipe(resolved.all_settings(), resolved.profile)
    if answer is None:
        return []
    if answer.problems:
        sentence = f"does not fit: {answer.problems[0]}; see `trl-ablate plan`"
        return [Finding("memory (estimate)", sentence, "change what `trl-ablate plan` proposes")]
    needed = max(sum(answer.bytes_training.values()), sum(answer.bytes_rollout.values())) / GIB
    card = answer.setup.gpu
    where = answer.gpu.source.split(";")[0] if card.startswith("cpu") else card
    sentence = (
        f"{needed:.1f} GiB of memory, {answer.step:.0f} s a step, {answer.run / 60:.0f} min on "
        f"{where}, otherwise idle; see `trl-ablate plan`"
    )
    return [Finding("estimate", sentence)]
