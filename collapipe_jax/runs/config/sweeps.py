"""Sweeps: a configuration at all combinations of values of its keys.

An axis is one key with its values, or several keys whose values go together. Axes make a
product, whose last axis runs fastest. The command line and the ``get_sweep()`` of a file give
axes alike.
"""

import contextlib
import functools
import itertools
import math
import numbers
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError, collect, require_positive
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.files import call_function, read_config

SEED = "seed"
"""Name of the axis of seeds."""

_MOST_POINTS = 100_000
_LOG_RATIO = 8.0  # of the largest value to the least, from which on an axis is logarithmic
_NEXT_KEY = re.compile(r"(?<!\s)\s+(?=[\w.]+=)")
_FORM = "Write KEY=v1,v2,... with a key as section.name"
_REMEDY = (
    "Return an axis or a list of them: {'keys': {key: [value, ...]}}, or "
    "{'axis': str, 'log': bool, 'points': [(number, {key: value}), ...]}"
)


class Axis(NamedTuple):
    """An axis of a sweep."""

    name: str  # in results
    keys: list[dict[str, Any]]  # overrides of the configuration at each of its points
    # Numbers, or names, of each point; those of the axis itself, then of keys that go with it.
    # Empty until the configurations are read, where keys are their own labels
    columns: Mapping[str, list[Any]] = MappingProxyType({})
    label: str = ""  # in figures; empty: made from the name
    log: bool = False  # whether its values are best drawn on a logarithmic axis

    @property
    def values(self) -> list[Any]:
        """Labels of its points."""
        return self.columns[self.name]


class _SweepPoint(NamedTuple):
    """A point of a sweep."""

    labels: dict[str, Any]  # its value on every axis, by name
    config: Config  # checked


class Sweep(NamedTuple):
    """All points of a sweep."""

    axes: list[Axis]
    points: list[_SweepPoint]  # the last axis runs fastest


def read_axis(option: str, text: str) -> Axis:
    """An axis written as ``KEY=v1,v2,...``; further keys after a blank go together with it.

    Commas within brackets or quotes do not separate.

    Raises:
      InputError: for the option, if the text has another form, or keys have unlike numbers of
        values.

    Example:
      >>> axis = read_axis("--sweep", "network.devices=3,5 devices.kinds=('jetson_nano',),()")
      >>> axis.name, axis.keys[0]
      ('network.devices', {'network.devices': '3', 'devices.kinds': "('jetson_nano',)"})
    """
    texts = {}
    for part in _NEXT_KEY.split(text.strip()):
        key, _, values = part.partition("=")
        texts[key] = _split(values)
        if not key or not all(texts[key]):
            raise InputError(option, text, "no axis", _FORM)
    return _key_axis(option, texts)


def _split(text: str) -> list[str]:
    """Words between the commas outside of brackets and quotes."""
    words, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quote:
            words.append("")
        else:
            words[-1] += character
    return [word.strip() for word in words]


def _key_axis(option: str, values: Mapping[str, Sequence[Any]], **looks: Any) -> Axis:
    """An axis of keys whose values go together; the first key names it."""
    sizes = {key: len(own) for key, own in values.items()}
    if not all(sizes.values()):
        raise InputError(option, dict(values), "a key has no values", "Give it some")
    if len(set(sizes.values())) > 1:
        problem = f"keys that go together have different numbers of values: {sizes}"
        raise InputError(option, dict(values), problem, "Give all of them as many")
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return Axis(next(iter(values)), rows, **looks)


def file_axes(path: str) -> list[Axis]:
    """Axes of a configuration's ``get_sweep()``, or of ``FILE:ARGUMENT``; none without one.

    Raises:
      InputError: if it returns anything but axes.
    """
    found = call_function(path, "get_sweep", optional=True)
    if found is None:
        return []
    axes = found if isinstance(found, list | tuple) else [found]
    if not axes:
        raise InputError("--config", path, "get_sweep() has no axes", _REMEDY)
    return [_file_axis(path, axis) for axis in axes]


def _file_axis(path: str, axis: Any) -> Axis:
    match axis:
        case {"keys": Mapping() as keys} if set(axis) <= {"keys", "label", "log"} and keys:
            looks = {name: axis[name] for name in ("label", "log") if name in axis}
            return _key_axis("--config", keys, **looks)
        case {"axis": str(label), "log": bool(log), "points": points} if len(axis) == 3:
            return _labelled_axis(path, label, log, points)
    raise InputError("--config", path, "its get_sweep() is no sweep", _REMEDY)


def _labelled_axis(path: str, label: str, log: bool, points: Sequence[Any]) -> Axis:
    """An axis whose points have labels of their own."""
    if not isinstance(points, list | tuple) or not points:
        raise InputError("--config", path, "get_sweep() has no points", _REMEDY)
    for point in points:
        match point:
            case [numbers.Real() | str(), Mapping()]:
                continue
        raise InputError("--config", path, f"get_sweep() has the point {point!r}", _REMEDY)
    named = [isinstance(value, str) for value, _ in points]
    if any(named) and not all(named):
        raise InputError("--config", path, "get_sweep() mixes names and numbers", _REMEDY)
    kind, name = str if all(named) else float, label.replace("/", " per ")
    values = [kind(value) for value, _ in points]
    if len(set(values)) < len(values):
        raise InputError("--config", path, f"get_sweep() has a value twice: {values}", _REMEDY)
    return Axis(name, [dict(keys) for _, keys in points], {name: values}, label, log)


def read_sweep(
    path: str,
    overrides: Mapping[str, Any],
    axes: Sequence[Axis],
    seeds: int = 1,
    check: Callable[[Config], Any] = lambda config: None,
) -> Sweep:
    """Checked configurations at all points of a product of axes.

    Energy budgets follow ``training.local_steps`` where this is swept, but for a budget that is
    swept itself.

    Args:
      path: of the configuration, as of :func:`.read_config`.
      overrides: of all points.
      axes: of :func:`read_axis` and :func:`file_axes`.
      seeds: from 2 on these make the last axis, ``seed``, from that of the configuration on.
      check: of a configuration, besides that of its keys.

    Raises:
      InputError: naming all that is wrong at any point.

    Example:
      >>> axes = [read_axis("--sweep", "control.v=1,10")]
      >>> [point.labels for point in read_sweep("quickstart", {}, axes, seeds=2).points[:2]]
      [{'control.v': 1.0, 'seed': 0}, {'control.v': 1.0, 'seed': 1}]
    """
    require_positive(seeds=seeds)
    count = seeds * math.prod(len(axis.keys) for axis in axes)
    if count > _MOST_POINTS:
        problem = f"{count} points, and a sweep has at most {_MOST_POINTS}"
        raise InputError("--sweep", [axis.name for axis in axes], problem, "Sweep less at once")
    _check_keys(axes, overrides, seeds)
    axes = list(axes)
    if seeds > 1:
        first = read_config(path, overrides).seed
        axes.append(Axis(SEED, [{SEED: first + index} for index in range(seeds)]))
    configs = []
    read = functools.lru_cache(maxsize=None)(lambda: read_config(path, overrides))
    with collect() as step:
        for rows in itertools.product(*(axis.keys for axis in axes)):
            with step():
                keys = functools.reduce(operator.or_, rows, {})
                configs.append(_read_point(path, overrides, keys, read))
                with _at_point(keys):
                    check(configs[-1])
    axes = [_with_columns(axis, own) for axis, own in _along_axes(axes, configs)]
    labels = itertools.product(*(axis.values for axis in axes))
    names = [axis.name for axis in axes]
    rows = zip(labels, configs, strict=True)
    points = [_SweepPoint(dict(zip(names, row, strict=True)), config) for row, config in rows]
    return Sweep(axes, points)


@contextlib.contextmanager
def _at_point(keys: Mapping[str, Any]) -> Iterator[None]:
    """Name the point of a sweep in its errors."""
    place = ", ".join(f"{key}={value}" for key, value in keys.items())
    try:
        yield
    except InputError as error:
        if not place:
            raise
        with collect() as step:
            for one in error.errors:
                with step():
                    problem = f"{one.problem}, at {place}"
                    raise InputError(one.key, one.value, problem, one.remedy) from None


def _check_keys(axes: Sequence[Axis], overrides: Mapping[str, Any], seeds: int) -> None:
    """Refuse keys that are given twice."""
    swept = [key for axis in axes for key in dict.fromkeys(itertools.chain(*axis.keys))]
    given = sorted(overrides.keys() & set(swept))
    swept += [SEED] if seeds > 1 else []
    swept += [axis.name for axis in axes if axis.name not in swept]
    with collect() as step:
        for key in dict.fromkeys(key for key in swept if swept.count(key) > 1):
            with step():
                raise InputError(key, key, "two axes have it", "Give every axis keys of its own")
        for key in given:
            with step():
                problem = "it is swept, and given for all points too"
                raise InputError(key, overrides[key], problem, "Leave one of them out")


def _read_point(
    path: str,
    overrides: Mapping[str, Any],
    keys: Mapping[str, Any],
    read_base: Callable[[], Config],
) -> Config:
    config = read_config(path, {**overrides, **keys})
    if _LOCAL_STEPS not in keys:
        return config
    scaled = _with_local_steps(read_base(), config.training.local_steps)
    return read_config(path, {**overrides, **scaled, **keys})


def _along_axes(axes: Sequence[Axis], configs: Sequence[Config]) -> list[tuple[Axis, list[Config]]]:
    """Every axis with the configurations along it, at the first point of the others."""
    found, stride = [], len(configs)
    for axis in axes:
        stride //= len(axis.keys)
        found.append((axis, [configs[index * stride] for index in range(len(axis.keys))]))
    return found


def _with_columns(axis: Axis, configs: Sequence[Config]) -> Axis:
    """An axis with the values of its keys, as the configurations have them.

    Raises:
      InputError: if two values are equal.
    """
    if axis.columns:
        return axis
    columns = {}
    for key in axis.keys[0]:
        values = [operator.attrgetter(key)(config) for config in configs]
        columns[key] = values if all(map(_is_number, values)) else [str(value) for value in values]
    values = columns[axis.name]
    if len(set(values)) < len(values):
        remedy = "Give every value once"
        remedy += ", or put a key first whose values differ" if len(columns) > 1 else ""
        raise InputError(axis.name, values, "a value is there twice", remedy)
    log = axis.log or (
        all(_is_number(value) and value > 0 for value in values)
        and max(values) >= _LOG_RATIO * min(values)
    )
    return axis._replace(columns=columns, log=log)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


_BUDGETS = ("control.control_unit_budget_j", "control.device_budget_j")
_LOCAL_STEPS = "training.local_steps"


def _with_local_steps(config: Config, count: int) -> dict[str, Any]:
    """Overrides that set the number of local steps, and the budgets in proportion.

    Under fixed budgets nobody could pay for the computing of more steps.

    Example:
      >>> import collapipe_jax as cp
      >>> _with_local_steps(cp.read_config("paper"), 8)["control.device_budget_j"]
      960.0
    """
    factor = count / config.training.local_steps
    scaled = {key: factor * config.control[key.removeprefix("control.")] for key in _BUDGETS}
    return {_LOCAL_STEPS: count, **scaled}
