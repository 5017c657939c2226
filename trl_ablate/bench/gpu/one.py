"""One part in its own process: runs it and writes its result, or why there is none. No torch here.

`python -m trl_ablate.bench.gpu.one PART DEVICE TOY FILE`; TOY is 0 or 1.
"""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from trl_ablate.bench.gpu.registry import PARTS, Found, NotHere, Setup
from trl_ablate.run.failures import message_of
from trl_ablate.run.json_files import write_json

ROOM = "trl_ablate.bench.gpu.parts"


def measure_into(part: str, device: str, toy: bool, file: str, room: str = ROOM) -> int:
    """Run a part and write its result; always 0, as the result says what went wrong."""
    try:
        check_card(part, Setup(device, toy))
        result = result_of(import_module(f"{room}.{part}").measure(Setup(device, toy)))
    except NotHere as missing:
        result = {"status": "skipped", "reason": str(missing)}
    except Exception as error:
        traceback.print_exc()
        known = message_of(error) or f"{type(error).__name__}: {error}".split("\n")[0]
        result = {"status": "failed", "reason": known}
    write_json(Path(file), result | {"machine": machine()})
    return 0


def check_card(part: str, setup: Setup) -> None:
    """Skip a part at full size if the card is too small for it."""
    if setup.device == "cuda" and not setup.toy:
        import torch

        found = torch.cuda.get_device_properties(0).total_memory / 2**30
        if found < PARTS[part].card:
            raise NotHere(f"the card has {found:.0f} GiB; this part needs {PARTS[part].card:.0f}")


def result_of(found: Found) -> dict[str, Any]:
    wrong = [check for check, holds in found.checks.items() if not holds]
    return {
        "status": "wrong" if wrong else "ok",
        "reason": f"does not hold: {'; '.join(wrong)}" if wrong else "",
        "rows": found.rows,
        "checks": found.checks,
        "facts": found.facts,
    }


def machine() -> str | None:
    """The machine, if torch has been imported; a part that imports none leaves it to others."""
    if "torch" not in sys.modules:
        return None
    from trl_ablate.bench.tables import machine

    return machine()


if __name__ == "__main__":
    name, device, toy, file = sys.argv[1:]
    sys.exit(measure_into(name, device, bool(int(toy)), file))
