"""Measure again what the pages say: run the commands, and write the figures as JSON.

    python -m experiments.reproduce [NAME ...] [--list]

Without names it measures what needs neither corpora nor a GPU. Every measurement runs in
``runs/NAME`` and writes ``docs/results/NAME.json``. One that is complete is not run again, but its
figures are read again: remove ``runs/NAME`` and ``runs/NAME.json`` to measure anew. One that was
killed goes on; its commit is the one at which it began. ``python -m experiments.pages`` brings the
figures to the pages. ``--tiny`` tries commands with small sizes, all of it in ``runs/tiny``.
"""

import datetime
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError, TrainingError
from collapipe_jax.core.files import read_object, write_json
from experiments.results.entries import ENTRIES, Entry
from experiments.results.record import FOLDER, ROOT, Record, git, read_record, this_machine

_WIDTH = 120


def main(argv: Sequence[str]) -> None:
    """Measure, or list what there is."""
    parser = make_parser(__doc__, root=("runs", "folder of the runs"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements; --list has them")
    parser.add_argument("--list", action="store_true", help="age and duration of measurements")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the commands")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in ENTRIES:
            remedy = f"Choose among {', '.join(ENTRIES)}"
            raise InputError("NAME", name, "no such measurement", remedy)
    root = Path(options.root).absolute()
    if options.list:
        console_for_tables(_WIDTH).print(_overview(options.names or list(ENTRIES)))
        return
    if options.tiny:
        root /= "tiny"
    out = root / "results" if options.tiny else FOLDER
    for name in options.names or [name for name, entry in ENTRIES.items() if not entry.needs]:
        entry = ENTRIES[name]
        tiny = f" {entry.tiny}" * options.tiny
        record = measure(entry, [command + tiny for command in entry.commands], root / name)
        record.write(name, out)
        Console().print(f"written: {out / name}.json, {record.seconds:.0f} s", soft_wrap=True)


def measure(entry: Entry, commands: Sequence[str], folder: Path) -> Record:
    """Run the commands that are not done, and read the figures.

    Args:
      entry: the measurement.
      commands: in their order.
      folder: where they run; beside it, a file says how far they are.
    """
    path = folder.with_suffix(".json")
    state = read_object(path) or {}
    if state.get("commands") != list(commands):
        state = _begun(commands)
    for command in commands[state["done"] :]:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, state)
        start_s = time.monotonic()
        try:
            _run(command, folder)
        finally:
            state["seconds"] += time.monotonic() - start_s
            write_json(path, state)
        state["done"] += 1
        write_json(path, state)
    origin = {key: state[key] for key in ("commit", "date", "machine", "seconds")}
    shown = tuple(command.replace("FOLDER", f"runs/{folder.name}") for command in entry.commands)
    return Record(entry.shows, shown, **origin, figures=entry.read(folder))


def _begun(commands: Sequence[str]) -> dict[str, Any]:
    """The state of a measurement that has done nothing yet."""
    return {
        "commands": list(commands),
        "commit": git("rev-parse", "--short", "HEAD"),
        "date": datetime.date.today().isoformat(),
        "machine": this_machine(),
        "seconds": 0.0,
        "done": 0,
    }


def _run(command: str, folder: Path) -> None:
    """Run a command of the table in this environment."""
    here = command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    here = here.replace("FOLDER", str(folder))
    Console().print(here, soft_wrap=True, markup=False, highlight=False)
    if status := subprocess.run(["bash", "-ec", here], cwd=ROOT).returncode:
        raise TrainingError(f"this command ended with status {status}: {here}")


def _overview(names: Sequence[str]) -> Table:
    """A row for every measurement."""
    rows = []
    for name in names:
        entry = ENTRIES[name]
        date = commits = ""
        if (FOLDER / f"{name}.json").exists():
            record = read_record(name)
            date = record.date + ", recorded" * record.recorded
            since = git("rev-list", "--count", f"{record.commit}..HEAD", "--", *entry.measures)
            commits = "?" if since is None else since
        rows.append((name, entry.shows, f"{entry.minutes:g}", entry.needs, date, commits))
    headings = ("name", "shows", "minutes", "needs", "measured", "changes since")
    caption = "Changes since: commits after it that touched what it measures."
    return make_table(headings, rows, left=2, caption=caption)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
