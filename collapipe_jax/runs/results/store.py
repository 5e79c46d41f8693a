"""Labelled arrays in a zarr store, written in parts by several processes at once.

The first process that writes to an array makes it, as large as all parts together. It holds fill
values where no part is written. A part fills whole chunks of it, so no two processes write to
one chunk. Axes have names, and the suffix of a name says its unit.
"""

import contextlib
import functools
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr
from zarr.codecs import ZstdCodec
from zarr.errors import ContainsArrayError, ContainsGroupError

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import partial_path
from collapipe_jax.core.quantity import unit_of

_REALISATION = "realisation"
"""Axis that is cut into chunks."""

_FLAGS = {"flag_values": [0, 1], "flag_meanings": "false true"}  # of booleans, as in CF
_OPENING = threading.Lock()  # Zarr's settings are those of all threads


class Place(NamedTuple):
    """Where a part lies in the arrays of a store."""

    lead: dict[str, tuple[int, int]]  # index on each leading axis and its length, by name
    start: int  # first realisation
    realisations: int  # of all parts together
    chunk: int  # realisations of a part
    # Lengths of further axes, at least as long as those of any part; by default those of the part
    sizes: Mapping[str, int] = {}

    def chunk_index(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Number of the part's chunk of an array with these axes."""
        own = {name: index for name, (index, _) in self.lead.items()}
        own[_REALISATION] = self.start // self.chunk
        return tuple(own.get(axis, 0) for axis in axes)


def create_store(
    path: Path, coordinates: Mapping[str, tuple[str, Sequence[Any]]], attributes: Mapping[str, str]
) -> None:
    """Make a store, or find it made already by the same call of another process.

    Args:
      path: its folder.
      coordinates: by name the axis and the values, numbers or names.
      attributes: of the store.
    """
    further = " ".join(name for name, (axis, _) in coordinates.items() if name != axis)
    own: dict[str, Any] = {**attributes, **({"coordinates": further} if further else {})}
    if not (path / "zarr.json").exists():
        with contextlib.suppress(ContainsGroupError):  # another process was faster
            zarr.open_group(path, mode="a", zarr_format=3, attributes=own)
    for name, (axis, values) in coordinates.items():
        if not (path / name / "c").exists():
            _write_whole(path, name, [axis], np.array(values))


def write_part(path: Path, data: Mapping[str, tuple[str, Any]], place: Place) -> None:
    """Write a part: of every array its axes, separated by blanks, and its values."""
    files = []
    for name, (axes, values) in data.items():
        values, named = np.asarray(values), [*place.lead, *axes.split()]
        array = _array(path, name, named, values, place)
        lead = tuple(index for index, _ in place.lead.values())
        region = tuple(slice(0, size) for size in values.shape)
        if _REALISATION in named:
            first = named.index(_REALISATION) - len(lead)
            own = slice(place.start, place.start + values.shape[first])
            region = (*region[:first], own, *region[first + 1 :])
        array[lead + region] = values
        files.append(chunk_file(path, name, place.chunk_index(named)))
    for file in files:
        _flush(file)


def _array(
    path: Path, name: str, axes: Sequence[str], values: np.ndarray, place: Place
) -> zarr.Array:
    """The array of a variable, made if it is not there."""
    dtype, fill, attributes = _encoding(values.dtype)
    own = dict(zip(axes[len(place.lead) :], values.shape, strict=True))
    lengths = {**own, **{axis: n for axis, n in place.sizes.items() if axis in own}}
    chunks = {**lengths, **dict.fromkeys(place.lead, 1)}
    lengths |= {axis: length for axis, (_, length) in place.lead.items()}
    if _REALISATION in own:
        lengths[_REALISATION], chunks[_REALISATION] = place.realisations, place.chunk
    try:
        array = _create(
            path,
            name,
            axes,
            shape=tuple(lengths[axis] for axis in axes),
            chunks=tuple(max(1, chunks[axis]) for axis in axes),
            dtype=dtype,
            fill_value=fill,
            attributes=attributes,
        )
    except ContainsArrayError:
        array = _open(path, name)
    if array.dtype != dtype:
        raise TypeError(f"{name} is of type {dtype} here and of {array.dtype} in another part")
    return array


def _create(path: Path, name: str, axes: Sequence[str], **options: Any) -> zarr.Array:
    unit = {"units": unit_of(name.partition(".")[0] if name.startswith("violated.") else name)}
    return zarr.create_array(
        path,
        name=name,
        dimension_names=tuple(axes),
        compressors=ZstdCodec(level=3, checksum=True),
        zarr_format=3,
        config={"write_empty_chunks": True},  # a chunk of fill values is a part like others
        **{**options, "attributes": {**unit, **options.get("attributes", {})}},
    )


def _open(path: Path, name: str) -> zarr.Array:
    """An array that is there; it writes chunks of fill values as :func:`_create` says."""
    with _OPENING, zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(path / name, mode="r+", zarr_format=3)


def _encoding(dtype: np.dtype) -> tuple[np.dtype, Any, dict[str, Any]]:
    """Type on file, value where nothing is written, and attributes that tell readers of it."""
    if dtype.kind == "b":
        return np.dtype(np.int8), -1, {"_FillValue": -1, **_FLAGS}
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fill = int(limits.min if dtype.kind == "i" else limits.max)
        return dtype, fill, {"_FillValue": fill}
    return dtype, np.nan, {}


def _write_whole(path: Path, name: str, axes: Sequence[str], values: np.ndarray) -> None:
    """Write an array that lacks no value."""
    dtype: Any = "str" if values.dtype.kind in "UO" else values.dtype
    try:
        array = _create(
            path, name, axes, shape=values.shape, chunks=_whole(values.shape), dtype=dtype
        )
    except ContainsArrayError:  # another process is about to write the same
        array = _open(path, name)
    array[...] = values


def _whole(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(1, size) for size in shape)


def chunk_file(path: Path, name: str, index: Sequence[int]) -> Path:
    """File of a chunk of an array."""
    return path.joinpath(name, "c", *map(str, index))


def _flush(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def read_array(path: Path, name: str) -> tuple[list[str], np.ndarray]:
    """Names of the axes of an array, and its values; booleans are booleans again."""
    array = zarr.open_array(path / name, mode="r")
    # Zarr takes a folder in the place of a chunk for a missing one, which has fill values.
    for index in np.ndindex(*array.cdata_shape):
        if (file := chunk_file(path, name, index)).is_dir():
            raise IsADirectoryError(f"{file} is a folder")
    values = np.asarray(array[...])
    if "flag_values" in array.attrs:
        values = values > 0
    if values.dtype.kind == "T":
        values = np.array(values.tolist(), dtype=np.str_)
    return list(array.metadata.dimension_names), values  # pyright: ignore


def write_table(path: Path, table: str, data: Mapping[str, tuple[str, Any]]) -> None:
    """Write a group of whole arrays in place of the one by this name, if there is one."""
    made = partial_path(path.parent / table)
    zarr.open_group(made, mode="w", zarr_format=3)
    for name, (axes, values) in data.items():
        _write_whole(made, name, axes.split(), np.asarray(values))
    for file in made.rglob("*"):
        if file.is_file():
            _flush(file)
    shutil.rmtree(path / table, ignore_errors=True)
    made.rename(path / table)


class Reader:
    """Arrays of a store, each read once."""

    def __init__(self, path: Path):
        self.path = path
        self._read = functools.cache(functools.partial(read_array, path))

    def part(self, place: Place, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
        """Arrays of a part with these shapes.

        Raises:
          FileNotFoundError: if one is missing.
        """
        found = {}
        for name, shape in shapes.items():
            axes, values = self._read(name)
            if not (file := chunk_file(self.path, name, place.chunk_index(axes))).is_file():
                raise FileNotFoundError(file)
            region: list[Any] = [index for index, _ in place.lead.values()]
            for axis, size in zip(axes[len(region) :], shape, strict=True):
                start = place.start if axis == _REALISATION else 0
                region.append(slice(start, start + size))
            found[name] = values[tuple(region)]
        return found


_T = TypeVar("_T")


class Shard(NamedTuple):
    """A share of the parts of an experiment."""

    index: int = 0
    count: int = 1

    def of(self, parts: Sequence[_T]) -> list[_T]:
        """Its own of all parts: of ``count`` neighbours one."""
        return list(parts[self.index :: self.count])


WHOLE = Shard()
"""All parts."""


def read_shard(text: str) -> Shard:
    """A shard written as ``i/n``, ``i`` from 0.

    Raises:
      InputError: if the text has another form.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError("--shard", text, "no shard", "Write i/n with i from 0 to n - 1")
    return Shard(int(index), int(count))
