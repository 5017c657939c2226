"""Publish a finished run on the Hugging Face Hub: `python scripts/publish.py RUN_DIR`.

The repository is private until `--public`. Publishing again uploads what has changed, if anything.
"""

import argparse
import sys
from pathlib import Path

from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.hub import PublishError, push_run
from trl_ablate.run.directory import RunDirectory


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0], allow_abbrev=False)
    parser.add_argument("run_dir", type=Path, help="folder of a run: runs/std_dev_off-seed0")
    parser.add_argument("--repo_id", help="OWNER/NAME; default: arm and seed, under your name")
    parser.add_argument("--public", action="store_true", help="let everybody see it")
    parser.add_argument("--revision", help="branch to publish to; default: main")
    options = parser.parse_args()
    try:
        url = push_run(
            RunDirectory(options.run_dir),
            repo_id=options.repo_id,
            private=not options.public,
            revision=options.revision,
        )
    except PublishError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; publishing again goes on from here\n")
        return 130
    console.print(f"published: {url}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
