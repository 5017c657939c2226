"""Several values for a setting of one run: refused, with the study that compares them."""

import os
from collections.abc import Sequence

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.overrides import takes_one_of, words_of_settings
from trl_ablate.recipe.places import recipe_path


def refuse_several(recipe: str, words: Sequence[str]) -> None:
    """Raise a `ConfigurationError` if a setting that takes one value is given several."""
    several = {
        name: f"[{', '.join(values)}]"
        for name, values in words_of_settings(words)
        if takes_one_of(name, values)
    }
    if not several:
        return
    given = ", ".join(f"{name}: {values}" for name, values in several.items())
    seeds = several.pop("seed", "[0, 1, 2]")
    factors = ", ".join(f"{name}: {values}" for name, values in several.items())
    path = recipe if os.path.exists(recipe) else recipe_path(recipe).name
    arms = f"recipe: {path}\nfactors: {{{factors}}}" if several else f"arms: [{path}]"
    raise ConfigurationError(
        f"a run has one value of each setting, and this one is given {{{given}}}; give one, or "
        "compare them in a study.yaml, with the other settings as `overrides: {key: value}`:\n\n"
        f"question: Which is better?\n{arms}\nseeds: {seeds}"
    )
