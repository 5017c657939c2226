"""Tables that fit the terminal: a cut table hides numbers. No torch."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table

UNLIMITED = 10_000


class FirstThatFits:
    """Of several forms of a table, the first that has room; if none has, the last one."""

    def __init__(self, *forms: Table):
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        unlimited = options.update(max_width=UNLIMITED)
        widths = ((form, Measurement.get(console, unlimited, form)) for form in self._forms)
        fitting = (form for form, width in widths if width.maximum <= options.max_width)
        yield next(fitting, self._forms[-1])
