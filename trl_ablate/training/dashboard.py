"""The integrations of transformers (`report_to`), made safe, and what trackio shows besides curves.

No error in an integration can end a run. If one raises an error, a warning gives the reason once
and the integration is removed from `report_to`, which all code that writes to a dashboard checks
first. The run's own files hold everything that a dashboard shows.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from trl_ablate.guard.rules import Alert
from trl_ablate.run.masking import Masker
from trl_ablate.run.untrusted import for_terminal, on_one_line

logger = logging.getLogger(__name__)

TRACKIO = "trackio"
STEP = "train/global_step"
"""The key that rows are joined on: trackio's own step counts the calls."""


def to_trackio(args: TrainingArguments, send: Callable[..., None], *given: Any) -> None:
    """Do `send(*given)`, if `report_to` has trackio; an error drops it from there."""
    if TRACKIO in (args.report_to or []):
        with dropped_on_error(args, TRACKIO):
            send(*given)


def log_rollouts(rows: list[dict[str, Any]], step: int) -> None:
    import trackio

    texts = ("prompt", "response")
    table: Any = [
        {"step": step, **row, **{name: _text(row[name]) for name in texts}} for row in rows
    ]
    trackio.log({"rollouts": trackio.Table(data=table), STEP: step})


def _text(given: str | list[dict[str, str]]) -> str:
    """Messages as text, each with its role; control characters are made visible."""
    if isinstance(given, str):
        return for_terminal(given)
    return for_terminal("\n".join(f"[{one['role']}] {one['content']}" for one in given))


def send_alert(alert: Alert) -> None:
    import trackio

    level = trackio.AlertLevel.ERROR if alert.action == "stop" else trackio.AlertLevel.WARN
    text = f"{alert.sentence} (step {alert.step})"
    with redirect_stdout(StringIO()):  # it prints the alert again, with its own step
        trackio.alert(title=f"guard: {alert.rule}", text=text, level=level)


def export_static(config: TrainingArguments, private: bool) -> str | None:
    """Upload the project as the static Space `trackio_static_space_id`, if that is set; its id, or
    None, with a warning, if that failed."""
    if not isinstance(config.trackio_static_space_id, str) or config.trackio_space_id:
        return None  # with a Space, trackio's callback has made the static one at the end
    import trackio

    try:
        return trackio.sync(
            project=config.project,
            space_id=config.trackio_static_space_id,
            sdk="static",
            private=private,
            bucket_id=config.trackio_bucket_id,
            force=True,
        )
    except Exception as error:
        warn_of(f"no static Space {config.trackio_static_space_id} was made", error)
        return None


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
    why = on_one_line(Masker().text(f"{type(error).__name__}: {error}"))[:300]
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
        self.name, self.integration = name, integration
        for event in (name for name in vars(TrainerCallback) if name.startswith("on_")):
            setattr(self, event, partial(self._pass_on, getattr(integration, event)))

    def _pass_on(self, event: Callable[..., Any], args: TrainingArguments, *given, **kwargs) -> Any:
        if self.name in (args.report_to or []):
            with dropped_on_error(args, self.name):
                return event(args, *given, **kwargs)
        return None
