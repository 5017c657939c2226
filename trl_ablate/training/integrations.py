"""The integrations of transformers (`report_to`), made safe: no error in one can end a run.

`report_to` of the trainer's arguments lists the integrations in use. If one raises an error, a
warning gives the reason once and the integration is removed from the list; all code that writes to
a dashboard checks the list first. The run's own files hold everything that a dashboard shows.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from trl_ablate.run.masking import Masker
from trl_ablate.run.untrusted import on_one_line

logger = logging.getLogger(__name__)

EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
REASON_LETTERS = 300


@contextmanager
def dropped_on_error(args: TrainingArguments, name: str) -> Iterator[None]:
    """Warn about an error of the integration, and stop reporting to it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        args.report_to = [other for other in args.report_to or [] if other != name]
        warn_of(f"reporting to {name} has stopped", error)


def warn_of(what: str, error: BaseException) -> None:
    """Log one line: what is given up, and why."""
    why = on_one_line(Masker().text(f"{type(error).__name__}: {error}"))[:REASON_LETTERS]
    logger.warning("%s (%s); the run continues, and its own files are complete", what, why)


@contextmanager
def tolerated_integrations(args: TrainingArguments) -> Iterator[list[TrainerCallback]]:
    """The callbacks of `report_to`, each in a `Tolerated`, for a trainer that is made in the block.
    There `report_to` is empty, because the trainer would add the callbacks again."""
    wanted = list(args.report_to or [])
    classes = get_reporting_integration_callbacks(wanted)
    callbacks = []
    for name, integration in zip(wanted, classes, strict=True):
        with dropped_on_error(args, name):  # its package may be missing
            callbacks.append(Tolerated(name, integration()))
    left, args.report_to = args.report_to, []
    try:
        yield callbacks
    finally:
        args.report_to = left


class Tolerated(TrainerCallback):
    """Passes every event to an integration, until it raises for the first time."""

    def __init__(self, name: str, integration: TrainerCallback):
        self.name = name
        self.integration = integration


def _passed_on(event: str) -> Callable[..., TrainerControl | None]:
    def pass_on(
        self: Tolerated,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs,
    ) -> TrainerControl | None:
        if self.name in (args.report_to or []):
            with dropped_on_error(args, self.name):
                return getattr(self.integration, event)(args, state, control, **kwargs)
        return None

    return pass_on


for _event in EVENTS:
    setattr(Tolerated, _event, _passed_on(_event))
