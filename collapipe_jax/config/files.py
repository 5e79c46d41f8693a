"""Configuration files, with an argument and with overrides on the command line."""

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from collapipe_jax.config.checks import check_config, unknown_key
from collapipe_jax.config.keys import Config
from collapipe_jax.config.system import build_system_params
from collapipe_jax.errors import InputError
from collapipe_jax.simulation.system import SystemParams


def read_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The configuration of a file, with ``--config.section.key=value`` applied.

    Args:
      path: a Python file with ``get_config()``, or ``FILE:ARGUMENT`` for its argument.
      overrides: arguments of the form above.

    Raises:
      InputError: if the file or an argument is wrong, with the nearest key.
    """
    config = _call(path, "get_config")
    if not isinstance(config, ConfigDict):
        problem = f"its get_config() returns {type(config).__name__}"
        raise InputError("--config", path, problem, "Return an ml_collections.ConfigDict")
    for override in overrides:
        _apply(config, override)
    return config


def read_checked_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The configuration of a file with all that can be checked without a corpus.

    Args:
      path: as for :func:`read_config`.
      overrides: likewise.

    Raises:
      InputError: naming the key that is wrong.
    """
    return check_config(read_config(path, overrides))


def system_params(config: Config) -> SystemParams:
    """Parameters of the network, every cluster with the same share of the samples."""
    return build_system_params(config, equal_weight(config))


def equal_weight(config: Config) -> np.ndarray:
    """The same share of the samples for every cluster, ``[N]``."""
    return np.full(config.network.clusters, 1.0 / config.network.clusters)


def read_sweep(path: str) -> dict[str, Any]:
    """The sweep of a configuration file with ``get_sweep()``, or of ``FILE:ARGUMENT``.

    Returns:
      ``axis``, ``log`` and ``points``: pairs of a number, or of a name throughout, and the
      overrides of the configuration.

    Raises:
      InputError: if there is no such file, or it has no sweep, or not a whole one.
    """
    sweep = _call(path, "get_sweep")
    remedy = "Return {'axis': str, 'log': bool, 'points': [(number, {key: value}), ...]}"
    if not isinstance(sweep, Mapping) or set(sweep) != {"axis", "log", "points"}:
        raise InputError("--config", path, "its get_sweep() is no sweep", remedy)
    for point in sweep["points"]:
        if len(point) != 2 or not isinstance(point[1], Mapping):
            raise InputError("--config", path, f"get_sweep() has the point {point!r}", remedy)
    named = [isinstance(value, str) for value, _ in sweep["points"]]
    if any(named) and not all(named):
        raise InputError("--config", path, "get_sweep() mixes names and numbers", remedy)
    kind = str if all(named) else float
    points = [
        (kind(value), [f"--config.{name}={setting}" for name, setting in keys.items()])
        for value, keys in sweep["points"]
    ]
    return {**sweep, "points": points}


def _call(path: str, name: str) -> Any:
    """Result of a function of a Python file, given its argument if there is one."""
    name_of_file, _, argument = path.partition(":")
    file = Path(name_of_file)
    if not file.is_file():
        raise InputError("--config", path, "no such file", "Name a file, e.g. configs/default.py")
    spec = importlib.util.spec_from_file_location("_config_file", file)
    if spec is None or spec.loader is None:
        raise InputError("--config", path, "not a Python file", "Name a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        variants = getattr(module, "VARIANTS", (argument,))
        if argument not in variants:
            remedy = f"Choose among: {', '.join(f'{file}:{one}' for one in variants if one)}"
            raise InputError("--config", path, "no such variant", remedy)
        return getattr(module, name)(*([argument] if argument else []))
    except InputError:
        raise
    except Exception as error:  # whatever its author wrote
        problem = f"the file fails with {type(error).__name__}: {error}".splitlines()[0]
        raise InputError("--config", path, problem, "Correct it") from error


def _apply(config: Config, override: str) -> None:
    """Set one key from ``--config.section.key=value``."""
    name, separator, text = override.partition("=")
    if not (separator and name.startswith("--config.")):
        raise InputError("argument", override, "not understood", "Write --config.section.key=value")
    name = name.removeprefix("--config.")
    if name not in flatten_dict(config.to_dict(), sep="."):
        raise unknown_key(name, text)
    *sections, key = name.split(".")
    section = config
    for step in sections:
        section = section[step]
    current = section[key]
    value = text if isinstance(current, str) else _parse(text)
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    try:
        # ConfigDict itself would take None for anything and True for 1.0.
        if value is None or isinstance(value, bool) != isinstance(current, bool):
            raise TypeError
        section[key] = value
    except TypeError:
        problem = f"not of type {type(current).__name__}"
        raise InputError(name, text, problem, f"Give a value like {current!r}") from None


def _parse(text: str):
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
