"""Publish a finished run on the Hugging Face Hub.

The repository is private unless --public is given. Publishing again uploads what has changed.

examples:
  trl-ablate publish runs/std_dev_off-seed0
  trl-ablate publish runs/std_dev_off-seed0 --repo_id me/std_dev_off --public
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from trl_ablate.cli.ending import DONE
from trl_ablate.cli.parsing import Command, Parser
from trl_ablate.cli.terminal import console, table
from trl_ablate.run.directory import RunDirectory


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="folder of a run: runs/std_dev_off-seed0"
    )
    parser.add_argument("--repo_id", help="OWNER/NAME; default: arm and seed, under your name")
    parser.add_argument("--public", action="store_true", help="make the repository public")
    parser.add_argument("--revision", help="branch to publish to; default: main")
    parser.add_argument("--dry_run", action="store_true", help="list the files and upload nothing")


def run(options: argparse.Namespace) -> int:
    from trl_ablate.hub import files_of, push_run

    run = RunDirectory(options.run_dir)
    if options.dry_run:
        show_files(files_of(run))
        return DONE
    url = push_run(
        run,
        repo_id=options.repo_id,
        private=not options.public,
        revision=options.revision,
        show=show_files,
    )
    console.print(f"published: {url}")
    return DONE


def show_files(files: Mapping[str, int]) -> None:
    """Print every file that is published, with its size."""
    rows = {
        path: f"{size:,} bytes" if size else "made from the run" for path, size in files.items()
    }
    console.print(table(f"{len(files)} files to publish", rows))


main = Command(
    add_options,
    run,
    stopped="publishing again continues where this stopped",
)
