"""Random damage to values, texts and files, each from its generator alone."""

import copy
import json
import string

_WHOLE = (0, -1, 1, 2, 7, 10**9, 2**31, 2**63, -(2**31), 10**309, 10**400)
_REAL = (0.0, -0.0, 0.5, 1e-60, 1e-300, 1e30, 1e38, 1e300, *map(float, ("inf", "-inf", "nan")))
_STRINGS = ("", "0", "nan", "x", "\ud800", "../..", "é" * 300, "a" * 10_000, "\x00", "dssra")
_NESTED = ([], {}, [[]], [0], [None], {"a": 1}, [1, 2, 3], ["x"], [[1.0, 2.0]])
VALUES = (None, True, False, *_WHOLE, *_REAL, *_STRINGS, *_NESTED)
"""Values that are wrong in most places."""

_NUMBERS = ("0", "1", "-1", "2147483648", "1000000000", "9" * 400, "9" * 5000, "1e-60", "1e999")
_LITERALS = (
    "None",
    "True",
    "()",
    "(1,)",
    "(1, 2, 3)",
    "[]",
    "{}",
    "('a',)",
    "'",
    '"',
    "nan",
    "inf",
)
_LONG = ("x" * 50_000, "(" * 3000, "-" * 5000 + "1", "9**9**9", " " * 3000)
_PATHS = (
    "é\udcff",
    "../../etc/passwd",
    "os:system",
    "json:loads",
    "a:b:c",
    "no.such:thing",
    "\x00",
)
_NAMES = ("", "dssra", "sgd", "translation", "synthetic", "sharded")
TEXTS = (*_NUMBERS, *_LITERALS, *_LONG, *_PATHS, *_NAMES)
"""Values of options."""


def pick(rng, options):
    """One of several."""
    return options[int(rng.integers(len(options)))]


def places(value, path=()):
    """Paths of all entries of a nested value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


def mutate_value(rng, document):
    """A nested value with one to three entries replaced, removed, copied or renamed."""
    document = copy.deepcopy(document)
    for _ in range(int(rng.integers(1, 4))):
        found = list(places(document))
        if not found:
            break
        *path, key = pick(rng, found)
        parent = document
        for step in path:
            parent = parent[step]
        match int(rng.integers(5)):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[key]))
            case 1 | 2 if isinstance(parent, dict):
                parent[pick(rng, ("x", "", "\ud800", "format"))] = parent.pop(key)
            case _:
                parent[key] = copy.deepcopy(pick(rng, VALUES))
    return document


_NUMBERS_NEXT_TO = (0.0, -0.0, 0, 1, 2, 2**31 - 1, 2**31, 1e-45, 1e-38, 1e-30, 1e30, 1e36, -1.0)
_FACTORS = (0.0, 0.5, 1.00005, 1.001, 2.0, 10.0, 1e-3, 1e3, 1e-9, 1e9, 1e-20, 1e20)


def mutate_numbers(rng, document):
    """A nested value with one to three of its numbers at another place of their range."""
    document = copy.deepcopy(document)
    for _ in range(int(rng.integers(1, 4))):
        first = pick(rng, [key for key, value in document.items() if not isinstance(value, str)])
        value = document[first]
        found = [(first,)] if isinstance(value, int | float) else []
        found += [(first, *path) for path in places(value)] if not found else []
        *path, key = pick(rng, found)
        parent = document
        for step in path:
            parent = parent[step]
        if not isinstance(parent[key], int | float):
            continue
        if rng.random() < 0.5:
            parent[key] = pick(rng, _NUMBERS_NEXT_TO)
        else:
            changed = parent[key] * pick(rng, _FACTORS)
            parent[key] = round(changed) if isinstance(parent[key], int) else changed
    return document


def mutate_bytes(rng, data):
    """Bytes that were cut, changed, repeated, or had something inserted."""
    if not data:
        return b"\xff"
    start, end = sorted(int(place) for place in rng.integers(len(data) + 1, size=2))
    insert = pick(
        rng, (b"\x00", b"\xff\xfe", b'"', b"\t", b"\r", b"\n\n", b"{", b"[" * 5000, b"," * 50)
    )
    match int(rng.integers(7)):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + insert + data[start:]
        case 3:
            place = min(start, len(data) - 1)
            return (
                data[:place]
                + bytes([data[place] ^ (1 << int(rng.integers(8)))])
                + data[place + 1 :]
            )
        case 4:
            return data[:end] + data[start:]
        case 5:
            return data[:start] + bytes(rng.integers(256, size=40, dtype="uint8")) + data[start:]
        case _:
            word = "".join(pick(rng, string.ascii_letters) for _ in range(8))
            return data[:start] + (word * 10_000).encode() + data[start:]


def mutate_json(rng, data):
    """The text of a JSON document, mutated as a value or as bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    return json.dumps(mutate_value(rng, json.loads(data))).encode()


def mutate_tensors(rng, data):
    """A safetensors file, mutated in its header as JSON or as bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    end = 8 + int.from_bytes(data[:8], "little")
    header = mutate_json(rng, data[8:end])
    return len(header).to_bytes(8, "little") + header + data[end:]
