"""X-ray: what arms do to the gradient on the same rollouts, before any of them is run.

`xray(arms, checkpoints, batches=8)` is the command `trl-ablate xray` in Python. Its page is
`README.md` here.
"""

from trl_ablate.xray.running import xray
from trl_ablate.xray.xray_page import Xray

__all__ = ["Xray", "xray"]
