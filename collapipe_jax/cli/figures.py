"""Draw figures of what folders hold, all of them or one by its name, as PDF and PNG.

    collapipe figures --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]
    collapipe figures NAME --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]

Training runs, drawn together: progress, latency, queues, constants where they were estimated, and
a gantt or gantt_clients a run; network by its name alone. A race: these of its runs with the first
seed and, with several seeds, race. Several races: race alone. A comparison: policies, memory,
constraints, and reduction where it has dssra. A sweep: sweep and sweep_mean. A map: map. A sweep of
training runs: training_sweep.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures.draw import KINDS, Kind, draw_figure, draw_folders

_OPTIONS = ("round", "cluster")


def main(
    argv: Sequence[str], kinds: Mapping[str, Kind] = KINDS, description: str | None = __doc__
) -> None:
    """Draw and write figures, and print their paths."""
    known = {one.name: (kind, one) for kind in kinds.values() for one in kind.drawings}
    out = (None, "folder for the files (default: figures/ in the first workdir)")
    parser = make_parser(description, out=out)
    parser.add_argument("name", nargs="?", choices=known, help="one figure alone")
    parser.add_argument("--workdir", required=True, action="append", help="repeat for several")
    parser.add_argument("--round", type=int, help="of a gantt (default: the last)")
    parser.add_argument("--cluster", type=int, help="of a gantt (default: the slowest)")
    options = parser.parse_args(argv)
    folder = Path(options.out) if options.out else Path(options.workdir[0]) / "figures"
    kind, drawing = known.get(options.name, (None, None))
    given = {key: value for key in _OPTIONS if (value := getattr(options, key)) is not None}
    for key, value in given.items():
        if drawing is None or key not in drawing.options:
            remedy = "Name gantt, or gantt_clients or network for a round"
            raise InputError(f"--{key}", value, "this figure does not take it", remedy)
    if kind is None or drawing is None:
        paths = draw_folders(options.workdir, folder, kinds)
    else:
        if "round" in given:
            given["round_number"] = given.pop("round")
        paths = draw_figure(drawing, kind, options.workdir, folder, **given)
    for path in paths:
        print(f"written: {path}")
