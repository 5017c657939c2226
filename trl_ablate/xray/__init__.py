"""X-ray: what arms do to the gradient on the same rollouts, before any of them is run.

`xray(arms, checkpoints, batches=8)` is the command `trl-ablate xray` in Python. Its page is
`README.md` here.
"""

from trl_ablate.xray.report import Xray
from trl_ablate.xray.running import xray

__all__ = ["Xray", "xray"]
