"""How a report writes numbers."""

from trl_ablate.study.report.stats import Interval

NOTHING = "–"
MIXED = " †"


def interval(found: Interval) -> str:
    half = found.half_width
    return number(found.mean) + ("" if half is None else f" ± {half:.3f}")


def difference(found: Interval, digits: int = 3) -> str:
    return within(found.mean, found.low, found.high, digits)


def within(value: float | None, low: float | None, high: float | None, digits: int = 3) -> str:
    """A difference, if there is one, with its limits, if it has some."""
    if value is None:
        return NOTHING
    if low is None or high is None:
        return signed(value, digits)
    return f"{signed(value, digits)} [{signed(low, digits)}, {signed(high, digits)}]"


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−").replace("inf", "∞")


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}".replace("-", "−")


def p_words(value: float | None) -> str:
    """`p = 0.016`, `p < 0.001`."""
    shown = p_value(value)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def p_value(value: float | None) -> str:
    """With a digit more near 0.05, so that it shows on which side of the level it lies."""
    if value is None:
        return NOTHING
    near = f"{value:.3f}" == "0.050"
    return "< 0.001" if value < 0.001 else f"{value:.{3 + near}f}"


def step(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"
