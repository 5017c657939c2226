"""Answer a question with arms × seeds: `python scripts/study.py run std_dev`."""

import sys

from trl_ablate.cli.study import main

if __name__ == "__main__":
    sys.exit(main())
