"""JSON that every reader understands alike; ambiguous text is refused."""

import json
import math
from collections.abc import Sequence
from typing import Any


def loads(text: str, *, is_finite: bool = True) -> Any:
    """Value of a JSON text.

    Args:
      text: of a file.
      is_finite: whether to refuse NaN and infinity here; else the caller does, by name.

    Raises:
      ValueError: if it is not JSON. Numbers that are no finite double, a key that is twice in one
        object, half of a surrogate pair, and nesting of thousands of levels count as that.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, **(_FINITE if is_finite else {}))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character, {error.object[error.start]!r}") from None
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is beyond double precision")
    return value


_FINITE: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite_float}


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key {twice!r} is there twice")
    return found
