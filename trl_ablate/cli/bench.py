"""`trl-ablate bench MODE`: compares this package with stock TRL.

Every mode prints a table and writes JSON.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_ablate.cli import bench_gpu
from trl_ablate.cli.ending import exit_code_of
from trl_ablate.cli.parsing import Parser, at_least_one
from trl_ablate.errors import ConfigurationError

MODEL_SHAPES = ("miniature", "qwen2.5-math-1.5b")

DESCRIPTION = "Measure this package against stock TRL. Every mode prints a table and writes JSON."

EXAMPLES = (
    "trl-ablate bench train",
    "trl-ablate bench step --rows 256 --output step.json",
    "torchrun --nproc-per-node 2 -m trl_ablate bench train --only",
    "trl-ablate bench gpu",
)


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    stopped = "finished parts are kept" if words[:1] == ["gpu"] else "nothing was written"
    return exit_code_of(lambda: run(parse(words)), stopped=stopped)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(EXAMPLES, prog="trl-ablate bench", description=DESCRIPTION)
    modes = parser.add_subparsers(title="modes", metavar="MODE", required=True)
    for name, add, text in (
        ("train", add_train, "the training phase, with replayed rollouts"),
        ("eval", add_eval, "evaluation of the miniature"),
        ("reward", add_reward, "grading, against one process that calls math-verify"),
        ("rollout", add_rollout, "generation by transformers, for three distributions of lengths"),
        ("step", add_step, "whole GRPO steps, with generation"),
        ("scale", add_scale, "cost of a token against rollout batch, length and processes"),
        ("xray", add_xray, "an arm of an X-ray against a training phase"),
        ("gpu", bench_gpu.add, "what no CPU can show, part by part, in ten minutes"),
    ):
        mode = modes.add_parser(
            name,
            help=text,
            description=f"Measure {text}.",
            usage=f"trl-ablate bench {name} [options]",
        )
        add(mode)
        output = Path(f"bench-{name}.json")
        mode.add_argument("--output", type=Path, default=output, help=f"JSON; default: {output}")
        mode.set_defaults(parser=mode)
    options, unknown = parser.parse_known_args(argv)
    options.parser.refuse(unknown)
    return options


def run(options: argparse.Namespace) -> int:
    if not options.output.parent.is_dir():
        raise ConfigurationError(
            f"the folder of --output {options.output} does not exist; create it, or give another"
        )
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore")
    return options.run(options) or 0


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_shape", default="miniature", choices=MODEL_SHAPES)
    parser.add_argument(
        "--vocabulary", type=at_least_one, help="of the model; default: the tokenizer's, or 151936"
    )
    parser.add_argument("--rows", type=at_least_one, default=64, help="completions per step")
    parser.add_argument("--microbatch", type=at_least_one, default=4)
    parser.add_argument("--prompt_length", type=at_least_one, default=96)
    parser.add_argument("--mean_length", type=float, default=343, help="mean completion length")
    parser.add_argument("--cap", type=at_least_one, default=1024, help="longest completion")
    parser.add_argument("--uniform", action="store_true", help="every completion of mean length")
    parser.add_argument(
        "--lengths", type=Path, help="recorded lengths: a JSON list or rollouts JSONL"
    )
    parser.add_argument(
        "--corrected", action="store_true", help="as with vLLM: correct the engine's mismatch"
    )
    parser.add_argument("--only", action="store_true", help="without stock TRL")
    parser.add_argument("--steps", type=at_least_one, default=3, help="counted steps per round")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=train)


def train(options: argparse.Namespace) -> None:
    import torch
    from accelerate import PartialState

    from trl_ablate import miniature
    from trl_ablate.bench import synthetic, tables, train_time

    main_process = PartialState(cpu=not torch.cuda.is_available()).is_main_process
    tokenizer = miniature.tokenizer()
    torch.manual_seed(options.seed)
    model = synthetic.random_model(options.model_shape, tokenizer, options.vocabulary)
    if options.uniform:
        lengths_N = [round(options.mean_length)] * options.rows
    elif options.lengths:
        lengths_N = synthetic.recorded_lengths(options.lengths)[: options.rows]
    else:
        lengths_N = synthetic.lengths(options.rows, options.mean_length, options.cap, options.seed)
    load = train_time.Workload(
        lengths_N,
        microbatch=options.microbatch,
        steps=options.steps,
        rounds=options.rounds,
        prompt_length=options.prompt_length,
        corrected=options.corrected,
    )
    builds: dict[str, train_time.Build] = {"trl_ablate": train_time.ours}
    if options.corrected:
        builds = {"trl_ablate, extra forward": train_time.with_extra_forward, **builds}
    if not options.only:
        builds = {"stock TRL": train_time.stock, **builds}
    found = train_time.compare(model, tokenizer, load, builds)
    if not main_process:
        return
    measured = list(found.values())
    mean = sum(lengths_N) / len(lengths_N)
    tables.publish(
        f"training phase, {options.rows} completions of {mean:.0f} tokens (longest "
        f"{max(lengths_N)}), microbatch {options.microbatch}, {options.model_shape}",
        train_time.rows_of(found, load),
        train_time.differences(measured[0], measured[-1]),
        options.output,
    )


def add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=at_least_one, default=1024)
    parser.add_argument(
        "--batches", type=at_least_one, nargs="+", default=[8, 64], help="of stock TRL"
    )
    parser.add_argument("--rounds", type=at_least_one, default=2)
    parser.set_defaults(run=evaluate)


def evaluate(options: argparse.Namespace) -> None:
    from trl_ablate.bench import eval_time, tables

    rows, facts = eval_time.compare(options.prompts, options.batches, options.rounds)
    tables.publish(f"evaluation of {options.prompts} prompts", rows, facts, options.output)


def add_reward(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answers", type=Path, help="JSONL with a gold `answer` a line")
    parser.add_argument("--count", type=at_least_one, default=256, help="answers per batch")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--workers", type=at_least_one, default=2)
    parser.set_defaults(run=reward)


def reward(options: argparse.Namespace) -> None:
    from trl_ablate.bench import reward_time, tables

    rows, facts = reward_time.compare(
        options.answers, options.count, options.rounds, options.workers
    )
    tables.publish(f"grading {options.count} answers", rows, facts, options.output)


def add_rollout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_shape", default="miniature", choices=MODEL_SHAPES)
    parser.add_argument("--rows", type=at_least_one, default=64, help="completions per batch")
    parser.add_argument(
        "--group", type=at_least_one, default=1, help="rows of one prompt, and so of one length"
    )
    parser.add_argument("--prompt_length", type=at_least_one, default=18)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=rollout)


def rollout(options: argparse.Namespace) -> None:
    import torch

    from trl_ablate import miniature
    from trl_ablate.bench import rollout_time, synthetic, tables

    torch.manual_seed(options.seed)
    model: Any = synthetic.random_model(options.model_shape, miniature.tokenizer()).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    rows, differing = [], 0
    for name in rollout_time.DISTRIBUTIONS:
        lengths_N = rollout_time.lengths_of(name, options.rows, options.group, options.seed)
        found = rollout_time.compare(
            model,
            lengths_N,
            group=options.group,
            prompt_length=options.prompt_length,
            rounds=options.rounds,
        )
        rows += rollout_time.rows_of(name, found, sum(lengths_N))
        theirs, ours = (one.ids for one in found.values())
        differing += int((theirs != ours).any(dim=1).sum())
    tables.publish(
        f"rollouts of {options.rows} completions, {options.model_shape}",
        rows,
        {"completions with different tokens": differing},
        options.output,
    )


def add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_shape", default="miniature", choices=MODEL_SHAPES)
    parser.add_argument("--world", default="chains", help="of the miniature")
    parser.add_argument("--rows", type=at_least_one, default=128, help="completions per step")
    parser.add_argument("--microbatch", type=at_least_one, default=64)
    parser.add_argument("--max_completion_length", type=at_least_one, default=60)
    parser.add_argument("--steps", type=at_least_one, default=5, help="counted steps per round")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.set_defaults(run=step)


def step(options: argparse.Namespace) -> None:
    from trl_ablate.bench import step_time, tables

    load = step_time.Load(
        rows=options.rows,
        microbatch=options.microbatch,
        max_completion_length=options.max_completion_length,
        world=options.world,
        rounds=options.rounds,
        steps=options.steps,
    )
    rows = step_time.compare(options.model_shape, load)
    tables.publish(
        f"whole steps, {options.rows} rollouts of up to {options.max_completion_length} tokens, "
        f"{options.model_shape}, {options.world}",
        rows,
        {name: rows[1][name] for name in ("ratio", "CPU ratio")},
        options.output,
    )


def add_xray(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", default="grpo")
    parser.add_argument("--profile", default="miniature")
    parser.add_argument("--rows", type=at_least_one, default=128, help="completions per batch")
    parser.add_argument("--batches", type=at_least_one, default=4, help="counted, per round")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.set_defaults(run=xray)


def xray(options: argparse.Namespace) -> None:
    from trl_ablate.bench import tables
    from trl_ablate.xray import costing

    rows, facts = costing.compare(
        options.recipe, options.profile, options.rows, options.batches + 1, options.rounds
    )
    tables.publish(
        f"an arm of an X-ray, {options.rows} completions a batch, {options.recipe}",
        rows,
        facts,
        options.output,
    )


def add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--mean_lengths", type=float, nargs="+", default=[128, 64, 256, 512])
    parser.add_argument("--processes", type=at_least_one, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=at_least_one, default=2, help="counted steps per round")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="over all points")
    parser.set_defaults(run=scale)


def scale(options: argparse.Namespace) -> None:
    from trl_ablate.bench import scale_time, tables

    rows = scale_time.measure(
        options.rows, options.mean_lengths, options.processes, options.steps, options.rounds
    )
    tables.publish("the training phase, cost of a token", rows, {}, options.output)
