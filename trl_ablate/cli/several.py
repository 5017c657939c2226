"""Several values for a setting of one run: refused, with the study that compares them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.overrides import read_overrides, takes_one_of, words_of_settings
from trl_ablate.recipe.places import recipe_path
from trl_ablate.study.definition import RESERVED

FOLDER = "my_study"


def refuse_several(recipe: str, profile: str, words: Sequence[str]) -> None:
    """Raise a `ConfigurationError` if a setting that takes one value is given several."""
    given = dict(words_of_settings(words))
    several = {name: values for name, values in given.items() if takes_one_of(name, values)}
    if not several:
        return
    others = given.keys() - several.keys() - set(RESERVED)
    named, listed = _one_line(several), recipe_path(recipe)
    path = _word(recipe if Path(recipe).exists() else f"{listed.stem}.yaml")
    seeds = several.pop("seed", ["0", "1", "2"])
    asked = f"Which {' and which '.join(several)}?" if several else "How far apart are seeds?"
    lines = [f"question: {asked}"]
    factors = [f"recipe: {path}", f"factors: {_one_line(several)}"]
    lines += factors if several else [f"arms: {{{_word(listed.stem)}: {path}}}"]
    if profile != "auto":
        lines += [f"profile: {profile}"]
    if others:
        overrides = read_overrides(
            [word for name in sorted(others) for word in (f"--{name}", *given[name])]
        )
        lines += [f"overrides: {json.dumps(overrides, ensure_ascii=False)}"]
    lines += [f"seeds: [{', '.join(seeds)}]"]
    tuned = next(iter(several), "learning_rate")
    study = "\n".join(lines)
    raise ConfigurationError(
        f"a run has one value of each setting, and this one is given {named}; give one, or paste "
        f"this to compare them:\n\nmkdir {FOLDER} && cat > {FOLDER}/study.yaml <<'END'\n{study}\n"
        f"END\ntrl-ablate study plan {FOLDER}\n\nTo find the best value for each of several arms "
        f"first, list `arms` and `tune: {_one_line({tuned: several.get(tuned, ['1e-5', '3e-5'])})}`"
    )


def _one_line(values: Mapping[str, Sequence[str]]) -> str:
    """The settings and their words as YAML."""
    listed = (f"{name}: [{', '.join(map(_word, words))}]" for name, words in values.items())
    return f"{{{', '.join(listed)}}}"


def _word(word: str) -> str:
    return word if re.fullmatch(r"[\w./+-]+", word) else json.dumps(word, ensure_ascii=False)
