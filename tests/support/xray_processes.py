"""An X-ray in one process or in two, on rollouts that are given or drawn."""

import json
import os
from pathlib import Path

from tests.support.two_processes import environment
from tests.support.xray_cases import small_xray

ARMS = ["grpo", "length_norm_constant", "grpo+group_filter=drop"]


def main(model: str, output: str, rollouts: str | None, processes: int = 1) -> None:
    from trl_ablate.xray import xray

    settings = small_xray(model, per_device_train_batch_size=8 // processes)
    result = xray(
        ARMS,
        (),
        2,
        overrides=settings,
        output=output,
        rollouts=rollouts and Path(rollouts),
    )
    if int(os.environ.get("RANK", "0")) == 0:
        (Path(output) / "found.json").write_text(json.dumps(result.to_dict()))


def one_of_two(rank: int, port: int, model: str, output: str, rollouts: str | None) -> None:
    os.environ.update(environment(rank, port))
    main(model, output, rollouts, processes=2)
