"""Publish a finished run on the Hugging Face Hub: `python scripts/publish.py RUN_DIR`."""

import sys

from trl_ablate.cli.publish import main

if __name__ == "__main__":
    sys.exit(main())
