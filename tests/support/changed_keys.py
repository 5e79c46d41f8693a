"""Configurations with one key changed or left out."""

import copy

from ml_collections import ConfigDict

from collapipe_jax.runs.config import default
from support import tiny_run

DEFAULT = default.get_config().to_dict()
TINY = tiny_run.get_config()


def leaves(tree, prefix=""):
    """Dotted names and values of a nested dictionary."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


KEYS = dict(leaves(DEFAULT))
SECTIONS = [key for key, value in DEFAULT.items() if isinstance(value, dict)]


def changed(name, value, base=TINY):
    """A copy of a configuration with one value set, whatever its type."""
    tree = copy.deepcopy(base.to_dict())
    *sections, key = name.split(".")
    place = tree
    for section in sections:
        place = place[section]
    place[key] = value
    return ConfigDict(tree)


def without(name):
    tree = copy.deepcopy(TINY.to_dict())
    *sections, key = name.split(".")
    place = tree
    for section in sections:
        place = place[section]
    del place[key]
    return ConfigDict(tree)
