"""Keys of a configuration: default, quantity and reason."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_collections import ConfigDict

from collapipe_jax.quantity import Quantity, Struct, quantities
from collapipe_jax.units import to_linear, unit_of

if TYPE_CHECKING:
    Config = Any  # a type checker cannot tell a section of a ConfigDict from a value
else:
    Config = ConfigDict

_LEVEL_BOUNDS = ">= -300 and <= 300"  # of dB and dBm


class Key(NamedTuple):
    """A key of a configuration.

    Attributes:
      default: its value, which also fixes its type.
      quantity: what the value is.
      why: reason for the default, or its source.
    """

    default: Any
    quantity: Quantity
    why: str


_Unnamed = Callable[[str, Mapping[str, Quantity]], Key]


def key(
    default: Any, meaning: str = "", bounds: str = "", *, why: str = "", **changes: Any
) -> _Unnamed:
    """A key of a :func:`section`.

    Args:
      default: its value.
      meaning: a noun phrase; without it a field of the section's structs describes the key.
      bounds: as in :class:`Quantity`, where they are not those of the field.
      why: reason for the default, or its source.
      **changes: other attributes of :class:`Quantity`.
    """

    def describe(name: str, fields: Mapping[str, Quantity]) -> Key:
        is_level = name not in fields and unit_of(name).startswith("dB")
        if meaning:
            known = Quantity(meaning=meaning)
        else:
            known = fields[to_linear(name, 0.0)[0] if is_level else name]
        item = default[0] if isinstance(default, tuple) else default
        own = {
            "shape": "",
            "unit": unit_of(name) if meaning or is_level else known.unit,
            "bounds": bounds or (_LEVEL_BOUNDS if is_level else known.bounds),
            "whole": type(item) is int,
        }
        return Key(default, dataclasses.replace(known, **own, **changes), why)

    return describe


def section(*structs: type[Struct], **keys: _Unnamed) -> dict[str, Key]:
    """Keys by name.

    Args:
      *structs: their fields describe the keys of the same names. A key in dB or dBm is described
        by the field of its name on a linear scale.
      **keys: made by :func:`key`.
    """
    fields = {name: each for struct in structs for name, each in quantities(struct).items()}
    return {name: describe(name, fields) for name, describe in keys.items()}
