"""One description of a number: meaning, symbol, shape, unit and bounds.

It is the metadata of the field that holds the number. Checks of configurations and documents,
reference pages and docstrings of structs follow from it.
"""

import dataclasses
import inspect
import math
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, dataclass_transform

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.typing import ArrayLike

from collapipe_jax.core.errors import InputError, meant
from collapipe_jax.core.plugins import find

# Units: their names, and conversions. Nothing else in the package converts a unit.

_UNITS = {  # by the suffix of a name, the longest first
    "_dbm_per_hz": "dBm/Hz",
    "_flops_per_s": "FLOP/s",
    "_bytes_per_s": "byte/s",
    "_joules_per_flop": "J/FLOP",
    "_w_per_hz": "W/Hz",
    "_m_per_s": "m/s",
    **{"_hz": "Hz", "_dbm": "dBm", "_db": "dB", "_w": "W", "_j": "J", "_s": "s", "_m": "m"},
    **{"_bps": "bit/s", "_flops": "FLOP", "_bits": "bit", "_bytes": "byte"},
}


def unit_of(name: str) -> str:
    """Unit that the suffix of a name says; empty if it says none."""
    return next((unit for suffix, unit in _UNITS.items() if f"_{name}".endswith(suffix)), "")


def _without_unit(name: str) -> str:
    """The name without the suffix that says its unit."""
    return next((name.removesuffix(suffix) for suffix in _UNITS if name.endswith(suffix)), name)


_PREFIXES = {1e9: "G", 1e6: "M", 1e3: "k"}
_PREFIXED = ("Hz", "FLOP/s", "bit/s", "bit")


def axis_texts(key: str, values: Sequence[Any]) -> tuple[str, list[str], float]:
    """Label of the axis of a key, with its unit; its values as text; and what those are over."""
    if key.endswith("]"):  # a label of the user's, with its unit
        return key, [f"{value:g}" for value in values], 1.0
    name = key.rpartition(".")[2]
    words = _without_unit(name).replace("_", " ").replace("d2e", "D2E").replace("d2d", "D2D")
    label, unit, scale = words[0].upper() + words[1:], unit_of(name), 1.0
    if not all(isinstance(value, int | float) for value in values):
        return f"{label} [–]", [str(value) for value in values], scale
    if unit in _PREFIXED:
        fits = [factor for factor in _PREFIXES if factor <= min(values)]
        scale = fits[0] if fits else 1.0
        unit = _PREFIXES.get(scale, "") + unit
    return f"{label} [{unit or '–'}]", [f"{value / scale:g}" for value in values], scale


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds in the unit in which a duration reads well, and the unit's name."""
    for seconds, name in ((3600.0, "h"), (60.0, "min")):
        if longest_s >= 2 * seconds:
            return seconds, name
    return (1.0, "s") if longest_s >= 0.5 else (1e-3, "ms")


def db_to_linear(ratio_db: ArrayLike) -> Array:
    """Ratio of powers on a linear scale, from decibels. Any shape."""
    return jnp.power(10.0, jnp.asarray(ratio_db) / 10.0)


_LINEAR = {"_dbm_per_hz": "_w_per_hz", "_dbm": "_w", "_db": ""}


def linear_name(name: str) -> str:
    """Name of a quantity on a linear scale; only a name in dBm or dB changes."""
    return next((name.removesuffix(x) + _LINEAR[x] for x in _LINEAR if name.endswith(x)), name)


def to_linear(name: str, value: ArrayLike) -> Array:
    """Value of a named quantity on a linear scale; watts from dBm, decibels over a milliwatt."""
    unit = unit_of(name)
    if unit.startswith("dBm"):
        return 1e-3 * db_to_linear(value)
    return db_to_linear(value) if unit == "dB" else jnp.asarray(value)


def gib_to_bytes(size_gib: float) -> float:
    """Bytes from GiB (2^30 bytes)."""
    return size_gib * 2.0**30


def bytes_to_mib(size_bytes: ArrayLike) -> ArrayLike:
    """MiB (2^20 bytes) from bytes."""
    return size_bytes / 2**20


_AXES = {"N": "N", "K": "K", "J": "K + 1", "C": "C", "P": "P"}
"""Lengths of axes by letter: clusters, devices, nodes, choices, points of a line."""

MOST_BLOCKS = 10_000
"""Encoder or decoder blocks of a model, far beyond any."""
_LARGEST_INT = 2**31 - 1
_LARGEST_NUMBER = 1e36  # beyond it single precision ends
_LEAST_NUMBER = float(np.finfo(np.float32).tiny)  # below it single precision has 0, or few digits
_RELATIONS = {">": operator.gt, ">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """What a number is."""

    meaning: str  # a noun phrase
    symbol: str = ""  # as in docs/system-model.md, in TeX
    shape: str = ""  # a letter of :data:`_AXES` an axis; none is a scalar
    unit: str = ""  # empty where there is none
    bounds: str = ">= 0"  # one or several, such as ``> 0 and <= 1``
    plausible: str = ""  # narrower bounds, outside of which a number is hardly meant
    slip: str = ""  # question and advice where it is not: a likely slip
    whole: bool = False  # whether it is an integer
    missing: float | str | None = None  # in a document without it: its value, or another key's
    choices: Any = ()  # known names, where it is a name; a mapping where ``own``
    optional: bool = False  # whether a document may lack it
    double: bool = False  # whether it may be too small for single precision
    own: bool = False  # whether it may also name an object of one's own, see :mod:`.own`

    @property
    def axes(self) -> str:
        """The shape in brackets; empty for a scalar."""
        return f"[{', '.join(_AXES[letter] for letter in self.shape)}]" if self.shape else ""

    def check(self, key: str, value: Any, example: Any = None) -> None:
        """Check a name, a number, or every number of an array of the right type and shape.

        Raises:
          InputError: on the first wrong entry of the key, with an example of a right value.
        """
        if self.own:
            find(key, value, self.choices)
            return
        if self.choices:
            if value not in self.choices:
                question = meant(value, self.choices) if isinstance(value, str) else ""
                remedy = f"{question} Choose among: {', '.join(self.choices)}".lstrip()
                raise InputError(key, value, f"unknown ({self.meaning})", remedy)
            return
        try:
            numbers = np.asarray(value, np.float64)
        except OverflowError:  # an integer has no bound, a float has
            value, numbers = "an integer of hundreds of digits", np.array(np.inf)
        for index in np.argwhere(~self._holds(numbers)):
            number = float(numbers[tuple(index)])
            like = "" if example is None else f", like {example!r}"
            raise InputError(
                key + "".join(f"[{i}]" for i in index),
                number if len(index) else value,
                f"{self._problem(number)} ({self.meaning})",
                f"Give {'an integer' if self.whole else 'a number'} {self.bounds}{like}"
                + (self.slip and f". {self.slip}"),
            )

    def doubt(self, key: str, numbers: np.ndarray) -> str:
        """What is implausible about numbers that :meth:`check` passes; empty if nothing is.

        A 0 is always plausible: it switches something off. A name is, too.
        """
        if self.choices:
            return ""
        for index in np.argwhere(~_within(numbers, self.plausible) & (numbers != 0)):
            place = key + "".join(f"[{i}]" for i in index)
            usual = f"{self.meaning}, as a rule {self.plausible} {self.unit}".strip()
            return f"{place} = {numbers[tuple(index)]:g}: hardly plausible ({usual}). {self.slip}."
        return ""

    @property
    def _largest(self) -> float:
        return _LARGEST_INT if self.whole else _LARGEST_NUMBER

    @property
    def _least(self) -> float:
        return 0.0 if self.double else _LEAST_NUMBER

    def _holds(self, numbers: np.ndarray) -> np.ndarray:
        holds = _within(numbers, self.bounds)
        sizes = np.abs(numbers)
        holds &= sizes <= self._largest  # written like this, it refuses NaN
        holds &= (sizes >= self._least) | (numbers == 0)
        return holds & (numbers == np.floor(numbers)) if self.whole else holds

    def _problem(self, number: float) -> str:
        """Why a number does not hold."""
        if not np.isfinite(number):
            return "not a finite number"
        if abs(number) > self._largest:
            return f"beyond {self._largest:g}"
        if 0 < abs(number) < self._least:
            return "zero in single precision"
        if self.whole and number != np.floor(number):
            return "not whole"
        return "zero" if number == 0 else "negative" if number < 0 else "out of bounds"


def check_product(sizes: Mapping[str, int]) -> None:
    """Refuse integers, by key, whose product overflows 32 bits.

    Raises:
      InputError: naming the largest one.
    """
    if (product := math.prod(sizes.values())) > _LARGEST_INT:
        key = max(sizes, key=lambda name: sizes[name])
        problem = f"{' times '.join(sizes)} is {product}, beyond {_LARGEST_INT}"
        raise InputError(key, sizes[key], problem, "Lower it")


def check_array(what: str, sizes: Mapping[str, int], entries: int | None = None) -> None:
    """Refuse an array that is larger than the memory of this machine.

    Args:
      what: what it holds.
      sizes: what its size depends on, by key; the largest one is named.
      entries: of 4 bytes each; the product of the sizes by default.

    Raises:
      InputError: naming the key of the largest size.
    """
    needed = 4 * (math.prod(sizes.values()) if entries is None else entries)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        key = max(sizes, key=lambda name: sizes[name])
        problem = f"{what} would take {needed / 2**30:.3g} GiB, of {there / 2**30:.3g} there are"
        raise InputError(key, sizes[key], problem, "Lower it")


def _within(numbers: np.ndarray, bounds: str) -> np.ndarray:
    """Which numbers are within bounds; all are where there are none."""
    holds = np.ones(numbers.shape, bool)
    for relation in filter(None, bounds.split(" and ")):
        sign, bound = relation.split()
        holds &= _RELATIONS[sign](numbers, float(bound))
    return holds


def quantity(
    meaning: str,
    symbol: str = "",
    shape: str = "",
    *,
    default: Any = dataclasses.MISSING,
    static: bool = False,
    **others: Any,
) -> Any:
    """A field of a :class:`Struct` that holds a :class:`Quantity`.

    The unit may follow from the field's name. A static one fixes shapes, and so is no leaf of
    the pytree; names never are.
    """
    each = Quantity(meaning=meaning, symbol=symbol, shape=shape, **others)
    is_leaf = not (static or each.choices)
    return struct.field(pytree_node=is_leaf, default=default, metadata={"quantity": each})


def positive(meaning: str, symbol: str = "", shape: str = "", **others: Any) -> Any:
    """A :func:`quantity` above 0."""
    return quantity(meaning, symbol, shape, bounds="> 0", **others)


def same(cls: "type[Struct]", name: str, **changes: Any) -> Any:
    """A field that holds the quantity of another struct's field, but for some attributes."""
    each = dataclasses.replace(quantities(cls)[name], **changes)
    return struct.field(metadata={"quantity": each})


def part(meaning: str, *, default: Any = dataclasses.MISSING) -> Any:
    """A field of a :class:`Struct` that holds no number, such as another struct."""
    return struct.field(default=default, metadata={"meaning": meaning})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(quantity, positive, same, part)
)
class Struct(struct.PyTreeNode):
    """A pytree filled by keyword, whose docstring lists its fields."""

    __no_type_check__ = True  # JAX makes structs with leaves of any kind

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(kw_only=True, **kwargs)
        known, lines = quantities(cls), []
        for field in dataclasses.fields(cls):
            if each := known.get(field.name):
                words = (each.meaning, each.unit, each.axes and f"``{each.axes}``")
            else:
                words = (field.metadata["meaning"],)
            lines.append(f"  {field.name}: {', '.join(filter(None, words))}.")
        cls.__doc__ = "\n".join([inspect.cleandoc(f"{cls.__doc__}"), "", "Attributes:", *lines])


def quantities(cls: type[Struct]) -> dict[str, Quantity]:
    """Quantities of a struct by field, in the order of its fields."""
    return {
        field.name: dataclasses.replace(each, unit=each.unit or unit_of(field.name))
        for field in dataclasses.fields(cls)
        if (each := field.metadata.get("quantity"))
    }
