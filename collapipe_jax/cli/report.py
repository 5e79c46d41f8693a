"""Write one page of HTML that shows what a folder holds; it needs no network.

    collapipe report --workdir=DIR [--workdir=DIR2 ...] [--out=FILE]

Of a training run, or several: the network, who holds which blocks, what happens when in a round,
scores, energy, queues, memory, limits and configuration. Also of a race, a comparison, a sweep, a
map, and a folder with a network and what plan decided for it. The page says what is what.
"""

from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.cli.options import make_parser
from collapipe_jax.runs.report.gather import write_report


def main(argv: Sequence[str]) -> None:
    """Gather the data, write the page, and print its path."""
    parser = make_parser(__doc__, out=("", "file to write (default: report.html in the workdir)"))
    parser.add_argument("--workdir", required=True, action="append", help="repeat for more runs")
    options = parser.parse_args(argv)
    out = Path(options.out) if options.out else Path(options.workdir[0]) / "report.html"
    write_report(options.workdir, out)
    print(f"written: {out}")
