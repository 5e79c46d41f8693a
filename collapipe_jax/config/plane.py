"""Planes: a configuration at all pairs of values of two keys."""

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from collapipe_jax.config.budgets import LOCAL_STEPS, with_local_steps
from collapipe_jax.config.default import Config
from collapipe_jax.config.files import read_config
from collapipe_jax.errors import InputError


class Axis(NamedTuple):
    """A key of the configuration, and its values as on the command line."""

    key: str
    texts: list[str]


def read_axis(option: str, text: str) -> Axis:
    """An axis written as ``KEY=v1,v2,...``.

    Raises:
      InputError: for the option, if the text has another form.
    """
    key, _, values = text.partition("=")
    texts = [value.strip() for value in values.split(",")]
    if not key or not all(texts):
        raise InputError(option, text, "no axis", "Write KEY=v1,v2,... with a key as section.name")
    return Axis(key.strip(), texts)


def plane_configs(path: str, overrides: Mapping[str, Any], x: Axis, y: Axis) -> list[Config]:
    """Checked configurations of all cells: rows from the first value of y, each along x.

    Energy budgets follow ``training.local_steps`` where this is an axis, but for a budget that
    is an axis itself.

    Raises:
      InputError: naming the key that is wrong.
    """
    if x.key == y.key:
        raise InputError("--y", y.key, "both axes have this key", "Give two keys")
    if LOCAL_STEPS in overrides and LOCAL_STEPS in (x.key, y.key):
        problem = "it is an axis, and budgets follow from the configuration's own value"
        raise InputError(LOCAL_STEPS, overrides[LOCAL_STEPS], problem, "Leave it out")
    read = functools.partial(_read_cell, path, overrides)
    return [read({x.key: one, y.key: other}) for other in y.texts for one in x.texts]


def _read_cell(path: str, overrides: Mapping[str, Any], keys: Mapping[str, str]) -> Config:
    config = read_config(path, {**overrides, **keys})
    if LOCAL_STEPS not in keys:
        return config
    scaled = with_local_steps(read_config(path, overrides), config.training.local_steps)
    return read_config(path, {**overrides, **scaled, **keys})


def axis_values(axis: Axis, configs: list[Config]) -> list[Any]:
    """Values of an axis as the configurations have them, in the order of its texts.

    Raises:
      InputError: if two texts are the same value.
    """
    found = dict.fromkeys(operator.attrgetter(axis.key)(config) for config in configs)
    if len(found) < len(axis.texts):
        raise InputError(axis.key, axis.texts, "a value is there twice", "Give every value once")
    return list(found)
