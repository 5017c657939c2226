"""Publish a finished run on the Hugging Face Hub.

The repository is private unless --public is given. Publishing again uploads what has changed.

examples:
  trl-ablate publish runs/std_dev_off-seed0
  trl-ablate publish runs/std_dev_off-seed0 --repo_id me/std_dev_off --public
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from trl_ablate.cli.parsing import command, flag, option
from trl_ablate.cli.terminal import console, table
from trl_ablate.run.directory import RunDirectory


@command(
    option("run_dir", metavar="RUN_DIR", type=Path, help="folder of a run: runs/std_dev_off-seed0"),
    option("--repo_id", help="OWNER/NAME; default: arm and seed, under your name"),
    flag("--public", "make the repository public"),
    option("--revision", help="branch to publish to; default: main"),
    flag("--dry_run", "list the files and upload nothing"),
    stopped="publishing again continues where this stopped",
)
def main(options: argparse.Namespace) -> None:
    from trl_ablate.hub import files_of, push_run

    run = RunDirectory(options.run_dir)
    if options.dry_run:
        show_files(files_of(run))
        return
    url = push_run(
        run,
        repo_id=options.repo_id,
        private=not options.public,
        revision=options.revision,
        show=show_files,
    )
    console.print(f"published: {url}")


def show_files(files: Mapping[str, int]) -> None:
    rows = [
        (path, f"{size:,} bytes" if size else "made from the run") for path, size in files.items()
    ]
    console.print(table(f"{len(files)} files to publish", rows))
