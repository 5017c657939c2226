"""`trl-ablate publish RUN_DIR`: uploads a finished run to the Hugging Face Hub."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from trl_ablate.cli.ending import exit_code_of
from trl_ablate.cli.parsing import Parser
from trl_ablate.cli.terminal import console, table
from trl_ablate.run.directory import RunDirectory

DESCRIPTION = """\
Publish a finished run on the Hugging Face Hub.

The repository is private unless --public is given. Publishing again uploads what has changed."""

EXAMPLES = (
    "trl-ablate publish runs/std_dev_off-seed0",
    "trl-ablate publish runs/std_dev_off-seed0 --repo_id me/std_dev_off --public",
)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(
        lambda: run(parse(argv)), stopped="publishing again continues where this stopped"
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(EXAMPLES, prog="trl-ablate publish", description=DESCRIPTION)
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="folder of a run: runs/std_dev_off-seed0"
    )
    parser.add_argument("--repo_id", help="OWNER/NAME; default: arm and seed, under your name")
    parser.add_argument("--public", action="store_true", help="make the repository public")
    parser.add_argument("--revision", help="branch to publish to; default: main")
    parser.add_argument("--dry_run", action="store_true", help="list the files and upload nothing")
    options, unknown = parser.parse_known_args(argv)
    parser.refuse(unknown)
    return options


def run(options: argparse.Namespace) -> int:
    from trl_ablate.hub import files_of, push_run

    run = RunDirectory(options.run_dir)
    if options.dry_run:
        show_files(files_of(run))
        return 0
    url = push_run(
        run,
        repo_id=options.repo_id,
        private=not options.public,
        revision=options.revision,
        show=show_files,
    )
    console.print(f"published: {url}")
    return 0


def show_files(files: Mapping[str, int]) -> None:
    """Print every file that is published, with its size."""
    rows = {
        path: f"{size:,} bytes" if size else "made from the run" for path, size in files.items()
    }
    console.print(table(f"{len(files)} files to publish", rows))
