"""`trl-ablate recipes`: lists shipped recipes by family, and studies, each with its question."""

import argparse
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from trl_ablate.cli.ending import exit_code_of
from trl_ablate.cli.parsing import Parser
from trl_ablate.cli.terminal import console
from trl_ablate.recipe.places import SHIPPED, recipe_path, shipped_studies
from trl_ablate.recipe.strict import read_mapping

DESCRIPTION = """\
List the shipped recipes by family, and the studies, each with the question that it asks.

With NAME: print the YAML of one recipe, to copy, or to redirect into a file of your own."""

EXAMPLES = (
    "trl-ablate recipes",
    "trl-ablate recipes std_dev_off",
    "trl-ablate recipes std_dev_off > mine.yaml",
)

FAMILIES = {
    "reference and first try": ("grpo", "quickstart"),
    "baseline and scale": ("batch_mean", "no_baseline*", "reinforce_with_baseline", "std_dev_off"),
    "length normalisation": ("length_norm_[cmt]*",),
    "learning rate": ("lr_*",),
    "reuse of rollouts": ("off_policy_*",),
    "groups and signs": (
        "zero_var_*", "two_grpo", "group_size_*", "raft", "nsr", "w_reinforce", "advantage_clip",
        "outcome_gate", "gdpo",
    ),
    "aggregation, entropy and KL": (
        "length_norm_prompt", "entropy_80_20", "entropy_bonus", "skywork_or1", "fp32_head", "kl_*",
    ),
    "stale and mismatched rollouts": ("stale_*", "sampler_*"),
    "engine mismatch": ("tis", "seq_tis", "icepop", "seq_mask", "geo_mask", "no_is"),
    "controls": ("placebo_*", "noisy_reward_*"),
    "variants from papers": (
        "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_pp_baseline", "lite_ppo", "dapo*",
        "gspo", "gmpo", "cispo", "sapo", "luspo", "vespo", "rl_from_scratch", "maxrl", "gpg",
        "opo", "pass_at_k", "f_grpo", "dppo", "topr",
        "rgra", "intellect2", "v32_mask", "scalerl", "justrl",
    ),
    "prompt and reward": ("question_only", "reasoning", "think"),
    "start": ("sft_*", "smollm2_*", "gemma3_*"),
    "adapters and engines": ("lora", "qlora", "continuous_batching", "vllm_server"),
}  # fmt: skip
"""Patterns of names, as `recipes/README.md` groups them; any other recipe is listed at the end."""
OTHER = "other"
NAME_WIDTH = 29


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: run(parse(argv)), stopped="the list is not complete")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(EXAMPLES, prog="trl-ablate recipes", description=DESCRIPTION)
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a recipe to print, or its path")
    options, unknown = parser.parse_known_args(argv)
    parser.refuse(unknown)
    return options


def run(options: argparse.Namespace) -> int:
    if options.name is not None:
        path = recipe_path(options.name)
        read_mapping(path, "recipe")
        console.out(path.read_text(encoding="utf-8"), highlight=False, end="")
        return 0
    for family, recipes in by_family().items():
        show(family, {path.stem: question_of(path.read_text("utf-8")) for path in recipes})
    studies = {name: read_mapping(path, "study") for name, path in shipped_studies().items()}
    show("studies", {name: study.get("question", "") for name, study in studies.items()})
    console.print("trl-ablate train RECIPE, or trl-ablate study plan STUDY, with a name from above")
    return 0


def show(title: str, questions: dict[str, str]) -> None:
    """Print one line for each name, however wide the terminal is, so that grep finds all of it."""
    console.print(title, style="bold")
    for name, question in questions.items():
        console.out(f"  {name:<{NAME_WIDTH}}{question}", highlight=False)
    console.print()


def by_family() -> dict[str, list[Path]]:
    families: dict[str, list[Path]] = {family: [] for family in (*FAMILIES, OTHER)}
    for path in sorted(SHIPPED.glob("*.yaml"), key=_in_numbers):
        families[family_of(path.stem)].append(path)
    return {family: recipes for family, recipes in families.items() if recipes}


def family_of(recipe: str) -> str:
    for family, patterns in FAMILIES.items():
        if any(fnmatch(recipe, pattern) for pattern in patterns):
            return family
    return OTHER


def _in_numbers(path: Path) -> tuple[str, float]:
    """A sort key that orders numbers by value: lr_1e-6 before lr_1e-5."""
    prefix, _, value = path.stem.rpartition("_")
    try:
        return prefix, float(value)
    except ValueError:
        return path.stem, 0.0


def question_of(recipe: str) -> str:
    """The `# Question:` at the top of a recipe, which may continue on the next comment lines."""
    found = re.search(r"^# Question: *(.+(?:\n#(?! ?\w+:) .*)*)", recipe, re.MULTILINE)
    return " ".join(re.sub(r"\n#", " ", found[1]).split()) if found else ""
