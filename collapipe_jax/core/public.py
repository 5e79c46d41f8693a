"""Public names of a package, each imported when it is first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package with these public names.

    Args:
      package: its name.
      names: module of each name below the package, with ``:NAME`` where it is another one there.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = names[name].partition(":")
        return getattr(importlib.import_module(f"{package}.{module}"), other or name)

    return get, lambda: sorted(names)
