"""Write the pages that hold figures: templates in ``docs/templates``, figures in ``docs/results``.

    python -m experiments.pages

A test holds the committed pages to these. A template names a measurement as ``r.NAME``, which is
its :class:`Record`; the functions below write its figures.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2

from collapipe_jax.core.files import write_text
from collapipe_jax.core.quantity import bytes_to_mib
from experiments.results.record import FOLDER, ROOT, Record, read_record

TEMPLATES = ROOT / "docs" / "templates"
PAGES = {
    "README.md": "README.md",
    "results.md": "docs/results.md",
    "limits.md": "docs/explanation/limits.md",
    "rivals.md": "docs/explanation/rivals.md",
}
"""Paths of pages by the names of their templates."""

_THIN = " "
_WIDTH = 116
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def main(argv: Sequence[str]) -> None:
    """Write all pages."""
    del argv
    for name, path in PAGES.items():
        write_text(ROOT / path, render(name))


def render(name: str) -> str:
    """A page by the name of its template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    helpers = (number, percent, interval, median, signed, bounds, mib, times, commands)
    records = {path.stem: read_record(path.stem) for path in FOLDER.glob("*.json")}
    words: dict[str, Any] = {helper.__name__: helper for helper in helpers}
    words["origin"] = lambda measurement: origin(measurement, records[measurement])
    note = f"<!-- Made by `python -m experiments.pages` from docs/templates/{name}. -->\n\n"
    return note + environment.get_template(name).render(r=records, **words)


# What templates write figures with.


def number(value: float | None, digits: int = 3) -> str:
    """To so many digits, thousands apart; from a million on with a power of ten, to two digits."""
    if value is None:
        return "∞"
    if value and abs(value) >= 1e6:
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa}·10{str(int(power)).translate(_RAISED)}"
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(places, 0)}f}".replace(",", _THIN)


def percent(share: float, places: int = 0) -> str:
    """A share in percent."""
    return f"{100.0 * share:.{places}f} %"


def signed(value: float, places: int = 1) -> str:
    """A difference with its sign."""
    return f"{value:+.{places}f}"


def interval(found: Mapping[str, float], places: int = 1) -> str:
    """A mean and the half width of its interval."""
    return f"{found['mean']:.{places}f} ± {found['ci95']:.{places}f}"


def median(found: Mapping[str, Any], digits: int = 3) -> str:
    """A median with the ends of its interval."""
    return f"{number(found['median'], digits)} {bounds(found, digits)}"


def bounds(found: Mapping[str, Any], digits: int = 3) -> str:
    """The ends of a median's interval."""
    low, high = found["median_ci95"]
    return f"[{number(low, digits)}, {number(high, digits)}]"


def mib(value: float) -> str:
    """Bytes in MiB."""
    return number(bytes_to_mib(value))


def times(ours: float, other: float) -> str:
    """How many times another number ours is."""
    return number(ours / other, 2)


def commands(record: Record) -> str:
    """The commands as a block of code."""
    lines = "\n".join(_wrapped(command) for command in record.commands)
    return f"```bash\n{lines}\n```"


def origin(name: str, record: Record) -> str:
    """The name that repeats a measurement, and when and where it was made."""
    cores = (record.machine or {}).get("cores")
    where = f" on {cores} core{'s' if cores != 1 else ''}" if cores else ""
    time = f" in {_duration(record.seconds)}" if record.seconds else ""
    verb = "recorded" if record.recorded else "measured"
    return f"*`{name}`, {verb} on {record.date} at `{record.commit}`{time}{where}.*"


def _duration(seconds: float) -> str:
    minutes = seconds / 60.0
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60.0:.1f} h"


def _wrapped(command: str) -> str:
    """A command on lines that end with a backslash; quoted words stay whole."""
    lines: list[str] = []
    line = ""
    for word in _words(command):
        if line and len(line) + len(word) > _WIDTH:
            lines.append(line + " \\")
            line = "   "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])


def _words(command: str) -> Iterable[str]:
    """Words as they are written, with their quotes."""
    lexer = shlex.shlex(command, posix=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return lexer


if __name__ == "__main__":
    main(sys.argv[1:])
