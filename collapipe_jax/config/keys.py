"""Keys of a configuration: default, quantity and reason."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_collections import ConfigDict

from collapipe_jax.quantity import Quantity, Struct, quantities
from collapipe_jax.units import linear_name, unit_of

if TYPE_CHECKING:
    Config = Any  # a type checker cannot tell a section of a ConfigDict from a value
else:
    Config = ConfigDict

_LEVEL_BOUNDS = {"gt": None, "ge": -300.0, "le": 300.0}  # of dB and dBm


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


def key(default: Any, meaning: str = "", *, why: str = "", **changes: Any) -> _Unnamed:
    """A key of a :func:`section`.

    Args:
      default: its value.
      meaning: a noun phrase; without it a field of the section's structs describes the key.
      why: reason for the default, or its source.
      **changes: other attributes of :class:`Quantity`.
    """

    def describe(name: str, fields: Mapping[str, Quantity]) -> Key:
        item = default[0] if isinstance(default, tuple) else default
        own: dict[str, Any] = {"shape": "", "whole": type(item) is int}
        if name not in fields and unit_of(name).startswith("dB"):
            own |= {"unit": unit_of(name), **_LEVEL_BOUNDS}
        if meaning:
            known = Quantity(meaning=meaning, unit=unit_of(name))
        else:
            known = fields[name if name in fields else linear_name(name)]
        return Key(default, dataclasses.replace(known, **(own | changes)), why)

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
