"""Train one arm: `accelerate launch scripts/train.py RECIPE [--key value ...]`."""

import sys

from trl_ablate.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
