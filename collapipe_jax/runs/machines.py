"""Wired machines on file, and what a published model asks of a pipeline over them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError, Step, collect, meant, nearest
from collapipe_jax.core.files import loads
from collapipe_jax.edge.wired import MOST_MACHINES, Machines, PipelineWork
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.config import AdapterConfig, BertConfig, CausalConfig

_EXAMPLE = "See docs/how-to/machines.md"


class _Number(NamedTuple):
    """A number of a machine or a link."""

    default: float | None = None  # None: it has to be there
    least: float = 0.0  # excluded, unless it is the default


_OF_MACHINE = {
    "memory_gb": _Number(),
    "tflops": _Number(),
    "memory_gb_s": _Number(default=math.inf),
}
_OF_LINK = {"gbit_s": _Number(), "rtt_ms": _Number(default=0.0)}
_MESSAGE_BITS = 16  # of an activation; in inference also of a weight


def read_machines(path: str) -> Machines:
    """Machines and links of a JSON file.

    ``{"machines": [{"name", "memory_gb", "tflops"}], "links": [{"between", "gbit_s", "rtt_ms"}]}``:
    memory in 10^9 bytes, the 10^12 FLOP/s that work reaches (a third of what data sheets say is
    usual), and of a link, which joins two machines, the rate of each direction and the round trip.
    A machine may have ``memory_gb_s``, the rate of its memory, which often limits inference.

    Raises:
      InputError: an unreadable file, or all that is wrong in it.
    """
    try:
        document = loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise InputError("--cluster", path, problem, _EXAMPLE) from None
    except ValueError as error:
        raise InputError("--cluster", path, f"not JSON ({error})", "Correct the file") from None
    if not isinstance(document, Mapping):
        raise InputError("--cluster", path, "holds no JSON object", _EXAMPLE)
    with collect() as step:
        document = _as_meant(document, ("machines", "links"), f"{path}: ", step)
        machines = _entries(document, "machines", "name", _OF_MACHINE, step)
        links = _entries(document, "links", "between", _OF_LINK, step)
        names = [name for name, _ in machines]
        with step():
            if not 1 <= len(names) <= MOST_MACHINES:
                remedy = f"Give 1 to {MOST_MACHINES}"
                raise InputError("machines", len(names), "no number of machines to search", remedy)
        for name in names:
            with step():
                if not isinstance(name, str) or not name or names.count(name) > 1:
                    problem = "is no name, or one of two machines"
                    raise InputError("machines: name", name, problem, "Give each its own")
        for ends, _ in links if names else ():
            with step():
                _check_ends(ends, names)
    rate_bps, delay_s = np.zeros((2, len(names), len(names)))
    for ends, link in links:
        way = tuple(names.index(name) for name in ends)
        for direction in (way, way[::-1]):
            rate_bps[direction] = 1e9 * link["gbit_s"]
            delay_s[direction] = 0.5e-3 * link["rtt_ms"]

    def column(key: str, unit: float) -> np.ndarray:
        return np.array([unit * machine[key] for _, machine in machines])

    return Machines(
        names=tuple(names),
        memory_bytes=column("memory_gb", 1e9),
        flops_per_s=column("tflops", 1e12),
        read_bytes_per_s=column("memory_gb_s", 1e9),
        rate_bps=rate_bps,
        delay_s=delay_s,
    )


def _entries(
    document: Mapping[str, Any], key: str, label: str, numbers: Mapping[str, _Number], step: Step
) -> list[tuple[Any, dict[str, float]]]:
    """Label and numbers of each entry of a list; what is wrong with them is reported."""
    listed = document.get(key, [])
    with step():
        if not isinstance(listed, list):
            raise InputError(key, listed, "is no list", _EXAMPLE)
    fine = []
    for place, entry in enumerate(listed if isinstance(listed, list) else ()):
        where, values = f"{key}[{place}]", {}
        if not isinstance(entry, Mapping):
            with step():
                raise InputError(where, entry, "is no object", _EXAMPLE)
            continue
        given = _as_meant(entry, (label, *numbers), f"{where}.", step)
        for name, number in numbers.items():
            with step():
                values[name] = _number(f"{where}.{name}", given.get(name, number.default), number)
        fine.append((given.get(label), values))
    return fine


def _as_meant(
    given: Mapping[str, Any], known: Sequence[str], where: str, step: Step
) -> dict[str, Any]:
    """An object whose unknown keys are reported, once each: a misspelt one has its value."""
    corrected = dict(given)
    for name in given:
        if name not in known:
            corrected.setdefault(nearest(name, known) or name, given[name])
            with step():
                remedy = meant(name, known) or f"Choose among: {', '.join(known)}"
                raise InputError(f"{where}{name}", given[name], "unknown key", remedy)
    return corrected


def _number(key: str, value: Any, number: _Number) -> float:
    """A number of the file, which is checked."""
    is_default = number.default is not None and value == number.default
    is_number = type(value) in (int, float) and math.isfinite(value) and value > number.least
    if not (is_default or is_number):
        kind = "a number from 0 on" if number.default == number.least else "a number above 0"
        problem = "missing" if value is None else f"not {kind}"
        raise InputError(key, value, problem, f"Give {kind}")
    return float(value)


def _check_ends(ends: Any, names: Sequence[Any]) -> None:
    if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
        raise InputError("links: between", ends, "does not join two machines", "Name both")
    for name in ends:
        if name not in names:
            known = [str(each) for each in names]
            remedy = meant(str(name), known) or f"Name two of {', '.join(known)}"
            raise InputError("links: between", name, "is no machine of the file", remedy)


def training_work(
    sizes: BertConfig | CausalConfig, tokens: int, batch: int, lora: int = 0
) -> PipelineWork:
    """Work of training steps on ``batch`` texts of so many tokens, of adapters of a rank alone.

    Numbers are of single precision, messages of 16 bits.
    """
    if lora:
        targets = sizes.linear_layers
        adapters = AdapterConfig(rank=lora, alpha=2.0 * lora, targets=targets)
        sizes = dataclasses.replace(sizes, adapters=adapters)
    embedding, head, head_flops = _ends(sizes, tokens)
    block = counts.block_counts(sizes, tokens)
    trained = sizes.encoder_blocks * block.trained + head + (0 if lora else embedding)
    return PipelineWork(
        blocks=sizes.encoder_blocks,
        batch=batch,
        block_flops=block.flops + block.backward_flops,
        first_flops=0.0,  # rows of a table
        last_flops=3.0 * head_flops,
        message_bits=float(_MESSAGE_BITS * tokens * sizes.width),
        block_static_bytes=_static_bytes(block.parameters, block.trained),
        block_kept_bytes=block.kept_bytes,
        first_static_bytes=_static_bytes(embedding, 0 if lora else embedding),
        last_static_bytes=_static_bytes(head, head),
        trained_bits=8.0 * counts.NUMBER_BYTES * trained,
        trains=True,
    )


def _static_bytes(parameters: int, trained: int) -> float:
    """Weights, and of those that are trained gradients and both moments of AdamW."""
    return float(counts.NUMBER_BYTES * (parameters + 3 * trained))


def inference_work(sizes: CausalConfig, tokens: int, requests: int) -> PipelineWork:
    """Work of the next token of each request, of so many tokens, in 16 bits."""
    embedding, head, head_flops = _ends(sizes, 1)
    number_bytes = _MESSAGE_BITS // 8
    block = counts.block_counts(sizes, 1)
    return PipelineWork(
        blocks=sizes.encoder_blocks,
        batch=requests,
        block_flops=block.flops + 4.0 * (tokens - 1) * sizes.heads_width,
        first_flops=0.0,
        last_flops=head_flops,
        message_bits=float(_MESSAGE_BITS * sizes.width),
        block_static_bytes=float(number_bytes * block.parameters),
        block_kept_bytes=float(2 * number_bytes * sizes.groups * sizes.head_width * tokens),
        first_static_bytes=float(number_bytes * embedding),
        last_static_bytes=float(number_bytes * head),
        trained_bits=0.0,
        trains=False,
    )


def _ends(sizes: BertConfig | CausalConfig, tokens: int) -> tuple[int, int, float]:
    """Parameters of embedding and head, and forward FLOPs of the head."""
    width, vocabulary = sizes.width, sizes.vocabulary_size
    if isinstance(sizes, CausalConfig):
        table = counts.embedding_parameters(vocabulary, width)
        return table, table + width, 2.0 * tokens * table
    tables = counts.bert_embedding_parameters(vocabulary, sizes.positions, width)
    pooler = width**2 + width
    return tables, pooler, 2.0 * pooler
