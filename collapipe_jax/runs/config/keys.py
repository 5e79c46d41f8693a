"""Keys of a configuration: default, quantity and reason of one value each."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from collapipe_jax.core.quantity import Quantity, Struct, quantities
from collapipe_jax.core.units import linear_name, unit_of

_LEVEL_BOUNDS = ">= -300 and <= 300"  # of dB and dBm


class Key(NamedTuple):
    """A key of a configuration."""

    default: Any  # its value, which also fixes its type
    quantity: Quantity  # what the value is
    why: str  # reason for the default, or its source


Unnamed = Callable[[str, Mapping[str, Quantity]], Key]
"""A key that still lacks its name, and the fields that may describe it."""


def key(
    default: Any, meaning: str = "", bounds: str = "", *, why: str = "", **changes: Any
) -> Unnamed:
    """A key of a :func:`section`, and attributes of its :class:`Quantity`.

    A field of the section's structs describes a key without a meaning.
    """

    def describe(name: str, fields: Mapping[str, Quantity]) -> Key:
        is_level = name not in fields and unit_of(name).startswith("dB")
        if meaning:
            known = Quantity(meaning=meaning)
        else:
            known = fields[linear_name(name) if is_level else name]
        item = default[0] if isinstance(default, tuple) else default
        own = {
            "shape": "",
            "unit": unit_of(name) if meaning or is_level else known.unit,
            "bounds": bounds or (_LEVEL_BOUNDS if is_level else known.bounds),
            "whole": type(item) is int,
            "plausible": "",  # of documents, where nothing else tells a slip
            "slip": "",
        }
        return Key(default, dataclasses.replace(known, **own, **changes), why)

    return describe


def own_seed(what: str) -> Unnamed:
    """The seed of a part, which may follow that of everything."""
    return key(-1, f"seed of the {what}; -1 takes `seed`", ">= -1")


def section(*structs: type[Struct], **keys: Unnamed) -> dict[str, Key]:
    """Keys by name, described by the fields of the same names.

    A key in dB or dBm is described by the field of its name on a linear scale.
    """
    fields = {name: each for struct in structs for name, each in quantities(struct).items()}
    return {name: describe(name, fields) for name, describe in keys.items()}
