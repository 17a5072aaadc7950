"""Figures in words: units always, thousands separated, one style everywhere."""

from collections.abc import Sequence
from typing import Final

_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """Return ``h:mm:ss``, whole seconds, rounded up so that nothing ends at "0:00:00 left"."""
    whole = max(0, int(-(-seconds // 1)))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def ago(milliseconds: int) -> str:
    """Return how long ago, in the largest unit that makes sense."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"


def size(nbytes: int) -> str:
    """Return a number of bytes with a decimal unit, as network rates have."""
    amount = float(nbytes)
    unit = _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if amount < 1000 or unit == _BYTE_UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def rate(mbit: float | None) -> str:
    """Return a link's rate, or "unknown"."""
    if mbit is None:
        return "unknown"
    if mbit >= 1000:
        return f"{mbit / 1000:.1f} Gbit/s"
    return f"{mbit:.0f} Mbit/s" if mbit >= 10 else f"{mbit:.1f} Mbit/s"


def millis(value: float | None) -> str:
    """Return a time in milliseconds, or "unknown"."""
    if value is None:
        return "unknown"
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction as per cent, or a dash where there is none yet."""
    return "-" if fraction is None else f"{100 * fraction:.{digits}f} %"


def loss(value: float | None) -> str:
    """Return a loss with three significant digits, or a dash where there is none yet."""
    return "-" if value is None else f"{value:#.3g}"


def listing(names: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plural(count: int, noun: str) -> str:
    """Return ``3 rounds``, ``1 round``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
