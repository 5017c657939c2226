"""`python -m trl_ablate COMMAND …`, and `accelerate launch -m trl_ablate train RECIPE`."""

import sys

from trl_ablate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
