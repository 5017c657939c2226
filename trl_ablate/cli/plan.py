"""Estimate on paper what a training needs.

That is the memory of a card while it generates and trains, and the seconds of each phase of a step.
Every assumption is printed with its value, and is an option. Nothing is measured and no model is
loaded; see trl_ablate/plan/README.md for how far the estimates were off.

The exit code is 1 if it does not fit.

examples:
  trl-ablate plan --model 7B --gpus 8 --sharding zero3
  trl-ablate plan --model 1.5B --gpu rtx4090 --microbatch 1 --checkpointing true
  trl-ablate plan std_dev_off --profile h100 --json
"""

import argparse
import json
from typing import Any, get_args

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import command, flag, option
from trl_ablate.cli.terminal import console, table
from trl_ablate.plan.estimate import Estimate, plan
from trl_ablate.plan.recipes import from_recipe
from trl_ablate.plan.setup import HINTS, OPTIONS, Setup, word
from trl_ablate.plan.sizes import GIB, GPUS, MODELS
from trl_ablate.recipe.places import AS_ASKED
from trl_ablate.run.json_files import finite


def _reading(name: str) -> dict[str, Any]:
    if name == "model":
        return {"metavar": "|".join([*MODELS, "CONFIG.JSON"])}
    kind = HINTS[name]
    if kind is bool:
        return {"type": _boolean, "metavar": "true|false"}
    if choices := tuple(GPUS) if name == "gpu" else get_args(kind):
        return {"choices": choices}
    return {"type": kind, "metavar": "N" if kind is int else "X"}


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return text == "true"


@command(
    option(
        "recipe", nargs="?", metavar="RECIPE",
        help="take its settings, where none is given; a name or a path",
    ),
    option("--profile", help="default: the recipe's own, or else h100"),
    flag("--json", "print JSON"),
    *[
        option(
            f"--{name}", default=argparse.SUPPRESS, **_reading(name),
            help=f"{each.metadata['meaning']}; default: {word(each.default)}".replace("%", "%%"),
        )
        for name, each in OPTIONS.items()
    ],
)  # fmt: skip
def main(options: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(options).items() if name in OPTIONS}
    of_recipe = {}
    if options.profile and not options.recipe:
        options.parser.error(
            f"--profile {options.profile} applies to a RECIPE, and none is given; name one, such "
            "as grpo, or give --gpu"
        )
    if options.recipe:
        from trl_ablate.recipe.resolving import load_recipe

        resolved = load_recipe(options.recipe, options.profile or "auto")
        if options.profile is None and resolved.profile_reason != AS_ASKED:
            resolved = load_recipe(options.recipe, "h100")
        named = {"model_name_or_path": given["model"]} if "model" in given else {}
        of_recipe = from_recipe({**resolved.all_settings(), **named}, resolved.profile)
    answer = plan(Setup(**{**of_recipe, **given}))
    if options.json:
        console.print(json.dumps(finite(answer.to_dict()), indent=1))
    else:
        show(answer, given, of_recipe)
    return FAILED if answer.problems else DONE


def show(answer: Estimate, given: dict[str, Any], of_recipe: dict[str, Any]) -> None:
    setup = answer.setup
    cards = f"{setup.gpus} × {setup.gpu}, {answer.gpu.memory / GIB:.0f} GiB each"
    console.print(f"{setup.model}: {answer.shape.parameters / 1e9:.2f} B parameters, on {cards}\n")
    for title, parts in (("training", answer.bytes_training), ("generation", answer.bytes_rollout)):
        rows = {part: f"{size / GIB:.1f}" for part, size in parts.items() if size}
        rows["together"] = f"{sum(parts.values()) / GIB:.1f}"
        console.print(table(f"GiB on a card, {title}", rows.items(), numbers_from=1))
    if answer.by_vllm:
        console.print(f"KV cache of the engine: {max(0, answer.cache_tokens):.0f} tokens\n")
    if answer.problems:
        for problem in answer.problems:
            console.print(f"does not fit: {problem}")
        changes = "\n  ".join(answer.changes) or "none of those that are tried"
        console.print(f"each of these would fit:\n  {changes}\n")
    else:
        _show_times(answer)
    _show_assumptions(answer, given, of_recipe)


def _show_times(answer: Estimate) -> None:
    parts = {
        f"{phase}: {part}": f"{seconds:.1f}"
        for phase, found in answer.seconds.items()
        for part, seconds in found.items()
        if seconds
    }
    parts["together"] = f"{answer.step:.1f}"
    console.print("fits")
    console.print(table("seconds of a step", parts.items(), numbers_from=1))
    setup = answer.setup
    console.print(
        f"a run of {setup.steps} steps and {setup.evaluations} evaluations of "
        f"{answer.evaluation:.0f} s: {answer.run / 3600:.1f} h\n"
    )


def _show_assumptions(answer: Estimate, given: dict[str, Any], of_recipe: dict[str, Any]) -> None:
    rows = []
    for name, each in OPTIONS.items():
        origin = "given" if name in given else "recipe" if name in of_recipe else "default"
        value = word(getattr(answer.setup, name))
        rows.append((f"--{name}", value, origin, each.metadata["meaning"]))
    header = ("option", "value", "from", "meaning")
    console.print(table("assumptions; each is an option", rows, header))
    gpu = answer.gpu
    console.print(
        f"\n{answer.setup.gpu}: {gpu.memory / GIB:.0f} GiB, {gpu.bandwidth / 1e9:.0f} GB/s, "
        f"{gpu.flops / 1e12:.4g} TFLOP/s in bfloat16, {gpu.link / 1e9:.0f} GB/s to other cards "
        f"({gpu.source})"
    )
