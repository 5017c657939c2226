"""Measure this package against stock TRL, side by side: `python scripts/bench.py train`.

Every mode prints a table and writes JSON.
"""

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def main() -> int:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description="Measure this package against stock TRL.")
    modes = parser.add_subparsers(dest="mode", required=True)
    add_train(modes.add_parser("train", help="the training phase, with replayed rollouts"))
    options = parser.parse_args()
    options.run(options)
    return 0


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_shape", default="miniature", help="miniature, qwen2.5-math-1.5b")
    parser.add_argument("--rows", type=int, default=64, help="completions per step")
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--mean_length", type=float, default=343, help="mean completion length")
    parser.add_argument("--cap", type=int, default=1024, help="longest completion")
    parser.add_argument("--uniform", action="store_true", help="every completion of mean length")
    parser.add_argument(
        "--lengths", type=Path, help="recorded lengths: a JSON list or rollouts JSONL"
    )
    parser.add_argument("--steps", type=int, default=3, help="counted steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("bench-train.json"))
    parser.set_defaults(run=train)


def train(options: argparse.Namespace) -> None:
    import torch

    from trl_ablate import miniature
    from trl_ablate.bench import replay, tables, training

    tokenizer = miniature.tokenizer()
    torch.manual_seed(options.seed)
    model = replay.random_model(options.model_shape, tokenizer)
    if options.uniform:
        lengths_N = [round(options.mean_length)] * options.rows
    elif options.lengths:
        lengths_N = replay.recorded_lengths(options.lengths)[: options.rows]
    else:
        lengths_N = replay.lengths(options.rows, options.mean_length, options.cap, options.seed)
    load = training.Workload(
        lengths_N, microbatch=options.microbatch, steps=options.steps, rounds=options.rounds
    )
    found = training.compare(
        model, tokenizer, load, {"stock TRL": training.stock, "trl_ablate": training.ours}
    )
    mean = sum(lengths_N) / len(lengths_N)
    tables.publish(
        f"training phase, {options.rows} completions of {mean:.0f} tokens (longest "
        f"{max(lengths_N)}), microbatch {options.microbatch}, {options.model_shape}",
        training.rows_of(found, load),
        training.differences(found["stock TRL"], found["trl_ablate"]),
        options.output,
    )


if __name__ == "__main__":
    sys.exit(main())
