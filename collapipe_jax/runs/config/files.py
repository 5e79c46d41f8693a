"""Configurations by name, file or module, with overrides on the command line.

A name is one of :data:`NAMED`, a file ends in ``.py``, and a module has a dot, as in
``my_package.my_config``. Each may have a variant, as in ``paper:lowband``.
"""

import ast
import contextlib
import importlib
import importlib.util
import os
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from collapipe_jax.core.errors import InputError, collect, meant
from collapipe_jax.learning.models.published import published_keys
from collapipe_jax.runs.config import NAMED, named
from collapipe_jax.runs.config.checks import FOLLOWING, check_config
from collapipe_jax.runs.config.default import Config

_MOST_DIVIDED = 10_000  # batch whose divisors are listed


def read_config(path: str = "default", overrides: Mapping[str, Any] | None = None) -> Config:
    """A checked configuration, some of its keys changed.

    Args:
      path: a name, or a file or module with ``get_config()``; ``PATH:VARIANT`` for its argument.
      overrides: values by key, as ``"section.key"``; a text is read as on the command line.

    Returns:
      A ``ConfigDict`` with one section for each part; docs/reference/configuration.md has all keys
      with their units.

    Raises:
      InputError: if the path is wrong, or naming the key that is, or all of them.

    Example:
      >>> import collapipe_jax as cp
      >>> cp.read_config("paper:lowband", {"control.v": 10}).radio.d2e_bandwidth_hz
      5000000.0
    """
    return check_config(*read_values(path, overrides))


def read_values(
    path: str = "default", overrides: Mapping[str, Any] | None = None
) -> tuple[Config, dict[str, Any]]:
    """A configuration as of :func:`read_config`, not checked yet, and overrides of unknown keys."""
    config = call_function(path, "get_config")
    if not isinstance(config, ConfigDict):
        problem = f"its get_config() returns {type(config).__name__}"
        raise InputError("--config", path, problem, "Return an ml_collections.ConfigDict")
    values: dict[str, Any] = dict(flatten_dict(config.to_dict(), sep="."))
    unknown = {}
    for name, value in (overrides or {}).items():
        if name not in values:
            unknown[name] = value
            continue
        is_text = isinstance(value, str) and not isinstance(values[name], str)
        before, values[name] = values[name], _parse(value) if is_text else value
        if is_text and isinstance(before, tuple) and not isinstance(values[name], tuple | list):
            # A list may be written a,b and one of a single entry a.
            values[name] = tuple(_parse(word.strip()) for word in value.split(","))
    _follow_batch(config, values, overrides or {})
    _follow_pretrained(values, overrides or {})
    if values.get("network.file") and (following := FOLLOWING.intersection(overrides or ())):
        name = min(following)
        raise InputError(name, values[name], "it follows from network.file", "Leave it out")
    return ConfigDict(unflatten_dict(values, sep=".")), unknown


def _follow_batch(config: Config, values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Allow the divisors of a new batch, where those of the former one were allowed."""
    key, training = "training.micro_batch_choices", config.training
    batch = values["training.batch"]
    if key in overrides or not (type(batch) is int and 0 < batch <= _MOST_DIVIDED):
        return
    if tuple(training.micro_batch_choices) == _divisors(training.batch):
        values[key] = _divisors(batch)


def _follow_pretrained(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Take sizes, vocabulary and dropout from the folder of a pretrained model, unless given."""
    folder = values.get("model.pretrained")
    if not folder or not isinstance(folder, str):
        return
    with contextlib.suppress(InputError):  # which is reported with what else is wrong
        followed = published_keys(folder)
        values |= {key: followed[key] for key in followed.keys() - set(overrides)}


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """Values by key of the arguments ``--config.section.key=value``.

    Raises:
      InputError: if an argument has another form.
    """
    overrides = {}
    with collect() as step:
        for argument in arguments:
            option, separator, text = argument.partition("=")
            name = option.removeprefix("--config.")
            with step():
                if not separator or name == option:
                    remedy = "Write a key as --config.section.key=value; see also --help"
                    raise InputError("argument", argument, "not understood", remedy)
                overrides[name] = text
    return overrides


def call_function(path: str, name: str, *, optional: bool = False) -> Any:
    """Result of a function of a configuration, given its variant if there is one.

    None where the configuration lacks an ``optional`` function.

    Raises:
      InputError: if the path is wrong, or the function fails.
    """
    place, _, variant = path.partition(":")
    try:
        names = _names(path, place)
        if variant not in names.get("VARIANTS", (variant,)):
            known = ", ".join(f"{place}:{one}" for one in names["VARIANTS"] if one)
            remedy = f"Choose among: {known}" if known else "It has none"
            raise InputError("--config", path, "no such variant", remedy)
        if optional and name not in names:
            return None
        return names[name](*([variant] if variant else []))
    except InputError:
        raise
    except Exception as error:  # whatever its author wrote
        problem = f"it fails with {type(error).__name__}: {error}".splitlines()[0]
        raise InputError("--config", path, problem, f"Give Python with {name}()") from error


def _names(path: str, place: str) -> dict[str, Any]:
    """What a configuration defines, by name."""
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise InputError("--config", path, "no such file", "Name a file, or paper, for one")
        return runpy.run_path(place)
    if place in NAMED:
        return {"get_config": getattr(named, place), "VARIANTS": NAMED[place]}
    try:
        found = "." in place and importlib.util.find_spec(place)
    except ModuleNotFoundError:  # of the package around it
        found = None
    if not found:
        remedy = meant(place, NAMED) or f"Choose among: {', '.join(NAMED)}."
        remedy += " Or name a file FILE.py or a module package.module"
        raise InputError("--config", path, "no such configuration", remedy)
    return vars(importlib.import_module(place))


def _parse(text: str) -> Any:
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
