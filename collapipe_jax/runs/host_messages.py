"""Messages between hosts: a description in JSON, and the bytes of arrays. No pickle, no code.

What a message describes is built from plain values, arrays, and the structs that the receiver has
imported already. So a message can neither name a function nor import a module.
"""

import dataclasses
import json
import sys
from typing import Any

import numpy as np

from collapipe_jax.core.errors import HostError, InputError, TrainingError

_PLAIN = (str, bool, int, type(None))
_ERRORS = {"InputError": InputError, "OSError": OSError, "TrainingError": TrainingError}
"""Errors that arrive as what they were; others arrive as a ``HostError``."""


def encode(value: Any) -> bytes:
    """A message of a value.

    Raises:
      TypeError: if something in it is neither plain, nor an array, nor a struct of such.
    """
    arrays = bytearray()
    head = json.dumps(_describe(value, arrays)).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, arrays])


def decode(message: bytes) -> Any:
    """The value of a message; arrays are NumPy's."""
    start = 8 + int.from_bytes(message[:8], "little")
    return _build(json.loads(message[8:start]), memoryview(message)[start:])


def describe_error(error: Exception) -> list[str]:
    """Kind and text of an error, for :func:`make_error`."""
    kinds = [name for name, kind in _ERRORS.items() if isinstance(error, kind)]
    return [*(kinds or ["HostError"])[:1], str(error)]


def make_error(kind: str, text: str) -> Exception:
    """The error that another host described."""
    if kind == "InputError":
        error = InputError("", "", "", "")
        error.args = (text,)
        return error
    return _ERRORS.get(kind, HostError)(text)


def _describe(value: Any, arrays: bytearray) -> Any:
    """The description of a value; the bytes of its arrays are appended."""
    if type(value) in _PLAIN:
        return {"plain": value}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, np.ndarray | np.generic):
        start = len(arrays)
        arrays += value.tobytes()
        return {"array": [value.dtype.name, list(value.shape), start, value.nbytes]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(each, arrays) for each in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _describe(each, arrays) for name, each in value.items()}}
    kind = type(value)
    if _fields(kind) is None:
        raise TypeError(f"a message has no place for {kind.__name__}")
    fields = {name: _describe(getattr(value, name), arrays) for name in _fields(kind) or ()}
    return {"struct": [kind.__module__, kind.__qualname__, fields]}


def _build(node: dict[str, Any], arrays: memoryview) -> Any:
    """The value of a description."""
    ((form, content),) = node.items()
    match form:
        case "plain":
            return content
        case "float":
            return float.fromhex(content)
        case "array":
            name, shape, start, size = content
            flat = np.frombuffer(arrays[start : start + size], np.dtype(name))
            return flat.reshape(shape).copy()
        case "list" | "tuple":
            values = [_build(each, arrays) for each in content]
            return values if form == "list" else tuple(values)
        case "dict":
            return {name: _build(each, arrays) for name, each in content.items()}
        case "struct":
            module, name, fields = content
            kind: Any = getattr(sys.modules.get(module), name, None)
            if _fields(kind) is None:
                raise TypeError(f"a message names {module}.{name}, which is no struct here")
            return kind(**{name: _build(each, arrays) for name, each in fields.items()})
    raise TypeError(f"a message has the unknown form {form}")


def _fields(kind: Any) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass or a named tuple; None for other classes."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    return None
