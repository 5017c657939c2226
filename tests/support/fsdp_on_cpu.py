"""`trl-ablate` under FSDP 2 on CPUs, which accelerate has for accelerators only.

`accelerate launch --config_file recipes/accelerate/fsdp2.yaml -m tests.support.fsdp_on_cpu` is the
command; where there is no GPU, accelerate alone would train by DDP, and not say so.
"""

import runpy
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_init = AcceleratorState.__init__


def with_fsdp(self: Any, *given, fsdp_plugin: Any = None, **named) -> None:
    _init(self, *given, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        if self.mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self.mixed_precision)
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


if __name__ == "__main__":
    AcceleratorState.__init__ = with_fsdp
    runpy.run_module("trl_ablate", run_name="__main__", alter_sys=True)
