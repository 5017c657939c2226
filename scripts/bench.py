"""Measure this package against stock TRL, side by side: `python scripts/bench.py train`."""

import sys

from trl_ablate.cli.bench import main

if __name__ == "__main__":
    sys.exit(main())
