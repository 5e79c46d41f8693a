"""Write the reference pages of configurations and documents.

    python -m experiments.reference docs/reference

The pages follow from the tables of keys and from the structs; a test holds them to these.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.core.quantity import Quantity
from collapipe_jax.runs import documents
from collapipe_jax.runs.config.default import KEYS
from collapipe_jax.runs.config.keys import Key

_PAGE = """<!-- Made by `python -m experiments.reference docs/reference`. -->

# {title}

{text} Symbols and numbers of equations are those of the [system model](../system-model.md)."""

_CONFIGURATION = """Every key of a configuration with its default. `--config.SECTION.KEY=VALUE` sets
a key on the command line. A value must have the type of the default; an integer may stand for a
float, and a list for a tuple."""

_DOCUMENTS = """Keys of networks, decisions and costs on file; [file formats](../file-formats.md)
has the rules for reading them. $N$ clusters have $K$ devices each, and $K + 1$ nodes with the
control unit, which is node 0. $C$ and $P$ are any numbers from 1 on. Gains are indexed sender
first. A number outside its range is refused; one that is not plausible is read with a warning,
but 0 always is."""


def configuration_page() -> str:
    """The page of all keys, in Markdown."""
    sections = {name: keys for name, keys in KEYS.items() if not isinstance(keys, Key)}
    top = [_of_key(name, key) for name, key in KEYS.items() if isinstance(key, Key)]
    page = [_PAGE.format(title="Configuration", text=_CONFIGURATION), _table(top)]
    for name, keys in sections.items():
        page += [f"## `{name}`", _table([_of_key(*each) for each in keys.items()])]
    return "\n\n".join(page) + "\n"


def documents_page() -> str:
    """The page of the documents' keys, in Markdown."""
    page = [_PAGE.format(title="Documents", text=_DOCUMENTS)]
    for title, keys in {
        f"## `{documents.NETWORK_FORMAT}`": documents.SIZES,
        **{_section_title(name): keys for name, keys in documents.NETWORK.items()},
        f"## `{documents.DECISION_FORMAT}`": documents.DECISION,
        "### Routes (optional, both or none)": documents.ROUTES,
        f"## `{documents.COST_FORMAT}`": documents.COST,
    }.items():
        page += [title, _table([_of_quantity(*each) for each in keys.items()])]
    return "\n\n".join(page) + "\n"


def _section_title(name: str) -> str:
    return f"### `{name}`" + " (optional)" * (name in documents.OPTIONAL_SECTIONS)


def main(argv: Sequence[str]) -> None:
    """Write both pages to a folder."""
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (folder / "documents.md").write_text(documents_page(), encoding="utf-8")


def _of_quantity(name: str, quantity: Quantity) -> dict[str, str]:
    """Cells of a row by column."""
    choices = ", ".join(f"`{choice}`" for choice in quantity.choices)
    return {
        "key": f"`{name}`",
        "symbol": quantity.symbol and f"${quantity.symbol}$",
        "unit": quantity.unit,
        "shape": quantity.axes and f"${quantity.axes}$",
        "if missing": _missing(quantity),
        "range": choices or "integer " * quantity.whole + quantity.bounds,
        "plausible": quantity.plausible,
        "likely slip": quantity.slip,
        "meaning": quantity.meaning + " (optional)" * quantity.optional,
    }


def _missing(quantity: Quantity) -> str:
    """Value of a key that a document may lack."""
    if quantity.missing is None:
        return ""
    if quantity.choices:
        return f"`{quantity.missing}`"
    is_key = isinstance(quantity.missing, str)
    return f"that of `{quantity.missing}`" if is_key else f"{quantity.missing:g}"


def _of_key(name: str, key: Key) -> dict[str, str]:
    default = key.default
    value = f"{default:g}" if isinstance(default, float) else repr(default)
    cells = _of_quantity(name, key.quantity) | {"if missing": ""}
    if isinstance(default, bool | str) and not key.quantity.choices:
        cells["range"] = ""
    return {"key": cells.pop("key"), "default": f"`{value}`", **cells, "reason": key.why}


def _table(rows: Sequence[dict[str, str]]) -> str:
    """A table without its empty columns."""
    head = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = [head, ["---"] * len(head), *([row[column] for column in head] for row in rows)]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


if __name__ == "__main__":
    main(sys.argv[1:])
