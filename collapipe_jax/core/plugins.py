"""Objects by name: of a registry, or one's own as ``package.module:name``; names of a wing."""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from collapipe_jax.core.errors import InputError, meant

_T = TypeVar("_T")

OWN = "or one of your own as package.module:name"


def find(key: str, name: str, known: Mapping[str, _T]) -> _T:
    """The object of a name.

    Args:
      key: key of the configuration or option that names it.
      name: a name of the registry, or ``package.module:name`` of a module that can be imported.
      known: the registry.

    Raises:
      InputError: if there is no such object.
    """
    if name in known:
        return known[name]
    if ":" in name:
        return _imported(key, name)
    remedy = f"{meant(name, known)} Choose among: {', '.join(known)}, {OWN}".lstrip()
    raise InputError(key, name, "unknown name", remedy)


@functools.cache  # the same object every time: it may be a static argument of a program
def _imported(key: str, name: str) -> Any:
    place, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(place), attribute, None)
    except ImportError as error:
        remedy = "Install its package, or start in the folder of the module"
        raise InputError(key, name, f"cannot be imported ({error})", remedy) from error
    except Exception as error:  # whatever its author wrote
        problem = f"importing it fails with {type(error).__name__}: {error}".splitlines()[0]
        raise InputError(key, name, problem, f"Correct the module {place}") from error
    if found is None:
        problem = f"the module {place} has no {attribute}"
        raise InputError(key, name, problem, "Correct the name after the colon")
    return found


# Public names of a package, each imported when it is first used.


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
