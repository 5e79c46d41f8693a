r"""Train with several policies on the same network and data: score against simulated time.

    python -m experiments.studies.race --config=clinc150 \
        --workdir=runs/race --policies=dssra,titanic,vanilla_fl,splitfed --equal=time --seeds=3 \
        --rates=1,2

Every policy is a training run of its own in the workdir; what is finished or saved is gone on
with. With ``--equal=time`` the first policy trains for the configured rounds, and every other
for as many as fit in the simulated time that these take, with warm-up, schedule, evaluations and
checkpoints spread over its own rounds. With ``--rates=1,2,4`` every policy trains once at each
multiple of the configured learning rates, on the first seed, and goes into the race with the one
whose last validation score is best; where the time is too short to learn anything there, give one
multiple for all instead. Every seed is another network, split and initial model. Several processes
share the runs with ``--shard=i/n``. Ends with a table and the figures.
"""

from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.cli.options import make_parser, read_numbers, run_training
from collapipe_jax.cli.shards import SHARD
from collapipe_jax.core.console import console_for_tables
from collapipe_jax.core.errors import require_positive
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.figures.draw import draw_folders
from collapipe_jax.runs.results.store import read_shard
from collapipe_jax.runs.studies.race import race

_WIDTH = 160


def main(argv: Sequence[str]) -> None:
    """Train with every policy, print the table, draw the figures."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        policies=",".join(POLICIES),
        rates=("1", "multiples of the learning rates, with commas"),
        seeds=(1, "number of seeds, from the configured one on"),
        **SHARD,
    )
    parser.add_argument(
        "--equal",
        choices=("rounds", "time"),
        default="rounds",
        help="what is equal for all policies",
    )
    given, overrides = parser.parse_known_args(argv)
    require_positive(seeds=given.seeds)
    is_over = race(
        read_config(given.config, parse_overrides(overrides)),
        given.policies.split(","),
        Path(given.workdir),
        console_for_tables(_WIDTH),
        rates=read_numbers("--rates", given.rates, zero=False),
        seeds=given.seeds,
        equal_time=given.equal == "time",
        shard=read_shard(given.shard),
    )
    if not is_over:
        return
    for path in draw_folders([given.workdir], Path(given.workdir) / "figures"):
        print(f"written: {path}")


if __name__ == "__main__":
    raise SystemExit(run_training(main))
