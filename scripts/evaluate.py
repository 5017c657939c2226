"""Evaluate a saved model: `python scripts/evaluate.py CHECKPOINT --dataset math --samples 4`."""

import sys

from trl_ablate.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
