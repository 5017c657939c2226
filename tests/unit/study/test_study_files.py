"""Study files: what they may say, and what is refused."""

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.study.definition import load_study
from trl_ablate.study.resolution import resolve_plan

HEAD = "question: q\nseeds: [0, 1]\nprofile: miniature\n"
ONE = HEAD + "arms: [grpo.yaml]\n"
TWO = HEAD + "arms: [grpo.yaml, dapo.yaml]\n"
FACTORS = HEAD + "factors: {scale_rewards: [group, none], learning_rate: [1e-5, 3e-5]}\n"
NINE = HEAD + f"factors: {dict.fromkeys('abcdefghi', [1, 2])}\n"
TUNE = "tune: {learning_rate: [1, 2]}\n"
LOOKS = ONE.replace("[0, 1]", "{looks: [2, 4]}")
TWO_PART = TWO + "judge: two_part\n"


def test_a_study_with_looks(write):
    study = load_study(write(
        "question: q\narms:\n  a: grpo.yaml\n"
        "  b: {recipe: dapo.yaml, against: a, expect: worse}\n"
        "seeds: {looks: [2, 4]}\nequivalence_margin: 0.02\nexpect: {a: collapse}\n"
        "overrides: {beta: 0.1, max_grad_norm: 0.5}\n"
    ))  # fmt: skip
    assert (study.seeds, study.looks, study.profile) == ((0, 1, 2, 3), (2, 4), "auto")
    assert study.equivalence_margin == 0.02
    assert study.expect == {"a": "collapse", "b": "worse"} and study.against == {"b": "a"}
    assert study.overrides == {"beta": 0.1, "max_grad_norm": 0.5}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("question: q\nseeds: [0]\n", "has no `arms`"),
        (ONE + "seed: 1\n", "unknown key 'seed'; did you mean 'seeds'"),
        (ONE + "design: {}\n", "unknown key 'design'"),
        (HEAD + "arms: [grop.yaml]\n", "'grop.yaml' does not exist; did you mean 'grpo.yaml'"),
        (HEAD + f"arms: [{'x' * 300}]\n", f"{'x' * 300}' does not exist"),
        (ONE.replace("miniature", "x" * 300 + ".yaml"), "does not exist"),
        (HEAD + "arms: [grpo.yaml, grpo.yaml]\n", "arm 'grpo' occurs twice"),
        (ONE.replace("[0, 1]", "[0, 0]"), "give each once"),
        (ONE.replace("[0, 1]", "{looks: [2], first: 4294967295}"), "4294967296 is no seed"),
        (ONE.replace("[0, 1]", "{look: [3]}"), "unknown key 'look'; did you mean 'looks'?"),
        (ONE.replace("[0, 1]", "{looks: [5, 3]}"), "seeds: looks are [5, 3]; allowed: ascending"),
        (ONE + "overrides: {output_dir: x}\n", "cannot be overridden"),
        (HEAD + "arms: {a: {recipe: grpo.yaml, seeds: [5]}}\n", "paired by position"),
        (HEAD + "arms: {a: {recipes: grpo.yaml}}\n", "unknown key 'recipes'"),
        (HEAD + "arms: {a: {seeds: [1, 2]}}\n", "has no `recipe`"),
        (HEAD + "arms: {a: 3}\n", "allowed: a recipe file"),
        (ONE + "decide_on: median\n", "one of final, best, auc"),
        (ONE + "equivalence_margin: -1\n", "equivalence_margin is -1.0; allowed: a positive"),
        (ONE + "expect: {c: better}\n", "expect has 'c', which is not an arm"),
        (ONE + "expect: {grpo: beter}\n", "expect: grpo is the text 'beter'"),
        (TWO + "against: {dapo: gpro}\n",
         "against has 'gpro', which is not an arm; did you mean 'grpo'"),
        (TWO + "against: {grpo: dapo}\n", "the first arm"),
        (HEAD + "arms: [grpo.yaml, dapo.yaml, gspo.yaml]\nagainst: {dapo: gspo, gspo: dapo}\n",
         "against compares dapo with gspo in a circle"),
        (FACTORS + "arms: [grpo.yaml]\n", "has both `arms` and `factors`"),
        (FACTORS + "equivalence_margin: 0.1\n", "effects are not judged by a margin"),
        (ONE + "fraction: 1/2\n", "'fraction' applies to `factors` only"),
        (ONE + "recipe: grpo.yaml\n", "'recipe' applies to `factors` only"),
        (HEAD + "factors: {beta: 0.1}\n", "factors is the mapping {'beta': 0.1}; it takes a mapp"),
        (FACTORS + "overrides: {learning_rate: 1e-4}\n", "is a factor and an override"),
        (HEAD + "factors: {}\n", "factors is empty; name a setting"),
        (HEAD + "factors: {a: [1]}\n", "factor 'a' has the levels [1]; give at least two"),
        (HEAD + 'factors: {a: [1, "1"]}\n', "and each once"),
        (FACTORS + "fraction: 1/2\n", "cannot separate their main effects; use a larger fraction"),
        (HEAD + "factors: {a: [1, 2, 3], b: [1, 2], c: [1, 2]}\nfraction: 1/2\n",
         "fraction 1/2 of 2 two-level factors cannot"),
        (FACTORS + "fraction: 1/3\n", "fraction is 1/3; it takes one of 1, 1/2, 1/4"),
        (NINE + "fraction: 1/2\n", "a fraction of 9 two-level factors; the limit is 8"),
        (NINE, "the factors have 512 cells; the limit is 256"),
        (HEAD + f"factors: {dict.fromkeys(map(str, range(99)), [1, 2])}\n", f"have {2**99} cells"),
        (FACTORS.replace("[0, 1]", "{looks: [2, 4]}"), "has looks and factors, which need a fixed"),
        (LOOKS + TUNE, "has looks and tune, which need a fixed number of seeds"),
        (FACTORS + TUNE, "tune replaces 'learning_rate'"),
        (ONE + "tune: {output_dir: [a, b]}\n", "cannot be overridden"),
        (ONE + "tune: {seeds: 2}\n", "tune has the settings none; name one"),
        (ONE + "tune: {a: [1, 2], b: [1, 2]}\n", "tune has the settings a, b; name one"),
        (ONE + "tune: {lr: [1, 2, 2]}\n", "tune has [1, 2, 2] for lr; give a list of two or more"),
        (ONE + "tune: {lr: 3}\n", "tune has 3 for lr; give a list"),
        (ONE + "tune: {lr: [1, 2], seeds: 0}\n", "tune has 0 seeds; give 1 or more"),
        (TWO + "reference_seeds: 8\n", "reference_seeds needs `judge: two_part`"),
        (TWO + "success: {threshold: 0.5}\n", "success needs `judge: two_part`"),
        (FACTORS + "judge: two_part\n", "not judged in two parts"),
        (TWO_PART + "reference_seeds: 1\n", "reference_seeds is 1; give 2 or more"),
        (TWO_PART.replace("[0, 1]", "[0, 4294967295]") + "reference_seeds: 3\n",
         "reference_seeds: 4294967296 is no seed"),
        (TWO_PART + "success: {treshold: 0.5}\n", "did you mean 'threshold'"),
        # what the recipes of the arms show
        (HEAD + "arms: [grpo.yaml, lr_1e-5.yaml]\noverrides: {learning_rate: 1e-5}\n",
         "'learning_rate' replaces what arm 'lr_1e-5'"),
        (HEAD + "arms: [grpo.yaml, lr_1e-5.yaml]\ntune: {learning_rate: [1e-5, 3e-5]}\n",
         "tune replaces the 'learning_rate' that lr_1e-5.yaml declares"),
        (HEAD.replace("miniature", "auto") + "arms: [grpo.yaml, mine.yaml]\n",
         "beyond what they declare"),
        (HEAD + "factors: {scale_rewards: [group, nnoe]}\n",
         "nnoe is refused in every cell: study.yaml: arm 'nnoe': scale_rewards is the"),
        (ONE + "overrides: {grpo_stpes: 3}\n", "study.yaml: overrides: unknown key 'grpo_stpes'"),
        (HEAD + "factors: {surrogate: [no_clip, clip], delta: [4.0, null]}\n",
         "the first level of every factor, the reference, is refused: surrogate 'no_clip' does"),
        (HEAD + "factors: {surrogate: [clip, no_clip], delta: [null, 4.0]}\nagainst: {clip--4: "
         "no_clip--4}\n", "against compares clip--4 with no_clip--4, which is refused: surrogate"),
    ],
)  # fmt: skip
def test_what_is_no_study(write, text, complaint):
    """`mine` has a profile of its own, which it does not declare."""
    file = write(text, mine="extends: grpo.yaml\nprofile: rtx4090\nbeta: 0.1\n")
    with pytest.raises(ConfigurationError) as raised:
        resolve_plan(load_study(file))
    assert complaint in str(raised.value)
