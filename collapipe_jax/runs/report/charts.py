"""Charts and tables as plain data, which the page draws."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

Data = dict[str, Any]
"""Names and values that JSON holds; the page leaves out what is missing."""


def plain(values: Any, digits: int = 5) -> Any:
    """Numbers as nested lists, rounded to some digits; None where one is not finite."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return array.tolist()
    rounded = [float(f"{value:.{digits}g}") for value in array.ravel().tolist()]
    known = [value if np.isfinite(value) else None for value in rounded]
    return np.array(known, object).reshape(array.shape).tolist()


def line(name: str, x: Any, y: Any, look: int, **more: Any) -> Data:
    """A line of a chart through the points that are known.

    Args:
      name: for the legend; empty for none.
      x: horizontal places.
      y: heights.
      look: number of its colour and dashes.
      **more: ``thin``, and ends ``low`` and ``high`` of intervals.
    """
    return {"name": name, "x": plain(x), "y": plain(y), "look": look, **more}


def line_chart(
    name: str, title: str, x: str, y: str, lines: Sequence[Data], **more: Any
) -> list[Data]:
    """A chart of lines in a list, or an empty list where no line has a point.

    Args:
      name: of its file.
      title: what it shows.
      x: label of the horizontal axis, with its unit.
      y: label of the vertical axis, with its unit.
      lines: of :func:`line`.
      **more: ``rules``, pairs of a word and a height; ``ticks``, names of the places 0, 1, ...;
        ``log_x``, whether places are on a logarithmic scale.
    """
    known = [one for one in lines if any(value is not None for value in one["y"])]
    if not known:
        return []
    chart = {"kind": "lines", "name": name, "title": title, "x": x, "y": y, "lines": known}
    return [chart | more]


def table(
    name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
) -> Data:
    """A table; cells are texts or numbers."""
    body = [[plain(cell) if isinstance(cell, float) else cell for cell in row] for row in rows]
    return {"name": name, "title": title, "head": list(head), "rows": body, "note": note}


def config_table(config: Mapping[str, Any]) -> Data:
    """A configuration, one row a key."""
    rows = [(key, str(value)) for key, value in flatten_dict(config, sep=".").items()]
    return table("configuration", "Configuration", ("key", "value"), rows)
