"""List the shipped recipes by family, and the studies, each with the question that it asks.

With NAME: print the YAML of one recipe, to copy, or to redirect into a file of your own.

examples:
  trl-ablate recipes
  trl-ablate recipes std_dev_off
  trl-ablate recipes std_dev_off > mine.yaml
"""

import argparse
import re
from pathlib import Path

from trl_ablate.cli.parsing import command, flag, option
from trl_ablate.cli.terminal import console
from trl_ablate.recipe.places import SHIPPED, recipe_path, shipped_studies
from trl_ablate.recipe.strict import read_mapping

FAMILIES = {
    "reference and first try": "",
    "baseline and scale": "",
    "length normalisation": "",
    "learning rate": "`grpo` has 3e-5",
    "reuse of rollouts": "256 completions per rollout batch, 128 on `miniature`, 64 on `smollm2`; "
    "`e` epochs, `tb` completions per optimizer step; steps are counted at 256",
    "groups and signs": "equal numbers of completions per rollout batch in each",
    "aggregation, entropy and KL": "",
    "stale and mismatched rollouts": "corrected by `token_truncate` with a cap of 3, as the base "
    "corrects an engine",
    "engine mismatch": "with vLLM only; the base has `token_truncate` with a cap of 3",
    "controls": "",
    "variants from papers": "the header lists what each has of its paper and what it lacks",
    "prompt and reward": "",
    "start": "",
    "adapters and engines": "",
}
"""Families in the order of the list, with a note; the header of each recipe names its own."""
OTHER = "other"
NAME_WIDTH = 29


@command(
    option("name", metavar="NAME", nargs="?", help="of a recipe to print, or its path"),
    flag("--markdown", "tables of what each recipe changes, as Markdown"),
    stopped="the list is not complete",
)
def main(options: argparse.Namespace) -> None:
    if options.name is not None:
        path = recipe_path(options.name)
        read_mapping(path, "recipe")
        console.print(path.read_text(encoding="utf-8"), end="")
        return
    if options.markdown:
        console.print(tables(), end="")
        return
    for family, recipes in by_family().items():
        show(family, {name: header(text, "Question") for name, text in recipes.items()})
    studies = {name: read_mapping(path, "study") for name, path in shipped_studies().items()}
    show("studies", {name: study.get("question", "") for name, study in studies.items()})
    console.print("trl-ablate train RECIPE, or trl-ablate study plan STUDY, with a name from above")


def show(title: str, questions: dict[str, str]) -> None:
    """Print one line for each name, however wide the terminal is, so that grep finds all of it."""
    console.print(title, style="bold")
    for name, question in questions.items():
        console.print(f"  {name:<{NAME_WIDTH}}{question}")
    console.print()


def by_family() -> dict[str, dict[str, str]]:
    """Family -> name -> text of each shipped recipe."""
    families: dict[str, dict[str, str]] = {family: {} for family in (*FAMILIES, OTHER)}
    for path in sorted(SHIPPED.glob("*.yaml"), key=_in_numbers):
        text = path.read_text(encoding="utf-8")
        family = header(text, "Family")
        families[family if family in FAMILIES else OTHER][path.stem] = text
    return {family: recipes for family, recipes in families.items() if recipes}


def tables() -> str:
    parts = []
    for family, recipes in by_family().items():
        note = f" ({FAMILIES[family]})" if FAMILIES.get(family) else ""
        rows = [f"| `{name}` | {header(text, 'Changes')} |" for name, text in recipes.items()]
        title = f"**{family[:1].upper()}{family[1:]}**{note}"
        parts.append("\n".join([title, "", "| recipe | what it changes |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _in_numbers(path: Path) -> tuple[str, float]:
    """A sort key that orders numbers by value: lr_1e-6 before lr_1e-5."""
    prefix, _, value = path.stem.rpartition("_")
    try:
        return prefix, float(value)
    except ValueError:
        return path.stem, 0.0


def header(recipe: str, key: str) -> str:
    """A line such as `# Question: …` at the top of a recipe, and those that continue it."""
    found = re.search(rf"^# {key}: *(.+(?:\n#(?! ?\w+:) .*)*)", recipe, re.MULTILINE)
    return " ".join(re.sub(r"\n#", " ", found[1]).split()) if found else ""
