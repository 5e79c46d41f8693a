"""Write the reference pages of configurations and documents.

    python -m collapipe_jax.config.reference docs/reference

The pages follow from the tables of keys and from the structs; a test holds them to these.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collapipe_jax.config.default import KEYS
from collapipe_jax.config.keys import Key
from collapipe_jax.files import documents
from collapipe_jax.quantity import Quantity

_NOTE = "<!-- Made by `python -m collapipe_jax.config.reference docs/reference`. -->"

_CONFIGURATION = f"""{_NOTE}

# Configuration

Every key of a configuration with its default. `--config.SECTION.KEY=VALUE` sets a key on the
command line. A value must have the type of the default; an integer may stand for a float, and a
list for a tuple. Symbols and numbers of equations are those of the
[system model](../system-model.md)."""

_DOCUMENTS = f"""{_NOTE}

# Documents

Keys of networks, decisions and costs on file; [file formats](../file-formats.md) has the rules for
reading them. Symbols and numbers of equations are those of the [system model](../system-model.md).
$N$ clusters have $K$ devices each, and $K + 1$ nodes with the control unit, which is node 0. $C$ is
any number from 1 on."""


def configuration_page() -> str:
    """The page of all keys, in Markdown."""
    top = {name: key for name, key in KEYS.items() if isinstance(key, Key)}
    sections = {name: keys for name, keys in KEYS.items() if name not in top}
    parts = [_CONFIGURATION, _key_table(top)]
    parts += [f"## `{name}`\n\n{_key_table(keys)}" for name, keys in sections.items()]
    return "\n\n".join(parts) + "\n"


def documents_page() -> str:
    """The page of the documents' keys, in Markdown."""
    parts = [_DOCUMENTS, f"## `{documents.NETWORK_FORMAT}`", _quantity_table(documents.SIZES)]
    for name, keys in documents.NETWORK.items():
        parts += [f"### `{name}`", _quantity_table(keys)]
    parts += [f"## `{documents.DECISION_FORMAT}`", _quantity_table(documents.DECISION)]
    parts += [f"## `{documents.COST_FORMAT}`", _quantity_table(documents.COST)]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str]) -> None:
    """Write both pages to a folder."""
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (folder / "documents.md").write_text(documents_page(), encoding="utf-8")


def _key_table(keys: Mapping[str, Key]) -> str:
    return _table(
        ("key", "default", "unit", "range", "meaning", "reason of the default"),
        (
            (
                f"`{name}`",
                f"`{_short(key.default)}`",
                key.quantity.unit,
                _range(key.quantity, isinstance(key.default, bool | str | tuple)),
                _with_symbol(key.quantity),
                key.why,
            )
            for name, key in keys.items()
        ),
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _quantity_table(quantities: Mapping[str, Quantity]) -> str:
    return _table(
        ("key", "symbol", "unit", "shape", "range", "meaning"),
        (
            (
                f"`{name}`",
                each.symbol and f"${each.symbol}$",
                each.unit,
                each.axes and f"${each.axes}$",
                _range(each),
                each.meaning,
            )
            for name, each in quantities.items()
        ),
    )


def _range(quantity: Quantity, is_other: bool = False) -> str:
    """Bounds of a number, or the names to choose among."""
    if quantity.choices:
        return ", ".join(f"`{name}`" for name in quantity.choices)
    if is_other:
        return ""
    return ("integer " if quantity.whole else "") + quantity.bounds


def _with_symbol(quantity: Quantity) -> str:
    return quantity.meaning + (f", ${quantity.symbol}$" if quantity.symbol else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


if __name__ == "__main__":
    main(sys.argv[1:])
