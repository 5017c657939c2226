"""Try out a recipe's data, prompt and reward without its model.

Print three prompts, and the reward of the reference answer, of a wrong one and of an empty
completion, how long one row takes, and the share of questions whose own answer does not earn full
reward. Settings are given as --key value, as for `train`. Code that the recipe names is executed.

examples:
  trl-ablate check my_task/recipe.yaml
  trl-ablate check question_only --profile miniature
"""

import argparse
from typing import TYPE_CHECKING

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import PROFILE, at_least, command, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import RewardError

if TYPE_CHECKING:
    from trl_ablate.training.checking import Checked

QUESTIONS = 200
EXAMPLES_SHOWN = 3


@command(
    PROFILE,
    option(
        "--questions", type=at_least(1), default=QUESTIONS, help=f"to grade (default {QUESTIONS})"
    ),
    settings="RECIPE [options] [--key value ...]",
    codes={
        0: "the reward tells right answers from wrong ones",
        1: "it does not, or a reward function failed",
    },
)
def main(options: argparse.Namespace, words: list[str]) -> int:
    recipe = options.parser.take_recipe(words, "my_task/recipe.yaml")
    from trl_ablate.recipe.resolving import load_recipe
    from trl_ablate.rewards import grader_of
    from trl_ablate.training.checking import check_recipe

    resolved = load_recipe(recipe, options.profile, words)
    try:
        with grader_of(resolved.task) as grader:
            found = check_recipe(resolved, grader, options.questions)
    except RewardError as error:
        problems = [str(error).removesuffix(", then rerun with --resume")]
    else:
        show(found)
        problems = found.problems()
    for problem in problems:
        console.print(f"problem: {problem}")
    return FAILED if problems else DONE


def show(found: "Checked") -> None:
    sizes = found.sizes
    console.print(f"data: {sizes['train']} questions to train on, {sizes['eval']} to evaluate on")
    console.print(f"columns: {', '.join(found.columns)}")
    for some, how in (
        (found.repeated, "occur more than once"),
        (found.shared, "are both trained on and evaluated on"),
    ):
        if some:
            console.print(f"{len(some)} questions {how}, first: {some[0]}")
    for number, prompt in enumerate(found.prompts, start=1):
        console.print(f"\nprompt {number}", style="bold")
        console.print(prompt)
    console.print(f"\nrewards: {', '.join(found.reward_names)}", style="bold")
    tried = {
        "reference answer": found.reference, "wrong answer": found.wrong,
        "empty completion": found.empty,
    }  # fmt: skip
    for kind, graded in tried.items():
        if graded is not None:
            mean, first = _number(graded.mean), _number(graded.rewards[0])
            speed = f"{1000 * graded.seconds:.2f} ms a row"
            console.print(f"  {kind:<17}{mean:>9} on average, {first:>8} for prompt 1, {speed}")
    if found.reference is None:
        console.print(
            "  the data have no column `answer`, so that no reference answer could be tried"
        )
        return
    console.print(f"  written as: {found.reference.completions[0]!r} ({found.format})")
    short, total = found.short_of_full, len(found.questions)
    console.print(
        f"  {len(short)} of {total} questions ({len(short) / total:.1%}) whose own answer does not "
        f"earn full reward ({_number(found.full)})"
    )
    for index in short[:EXAMPLES_SHOWN]:
        row = found.questions[index]
        console.print(
            f"    {_number(found.reference.rewards[index])} for the answer {row['answer']!r} to "
            f"{str(row.get('question', row['prompt']))[:80]!r}"
        )


def _number(value: float | None) -> str:
    return "ungraded" if value is None else f"{value:.3f}"
