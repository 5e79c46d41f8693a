"""Write a network drawn from a configuration to a file, to be planned and evaluated.

    python -m experiments.sample --config=configs/default.py --out=NET.json

Any key may be set on the way, the seed for one: ``--config.seed=3``.
"""

from collections.abc import Sequence

import jax

from collapipe_jax.command_line import make_parser, run_reporting_errors
from collapipe_jax.compilation import quick_jit
from collapipe_jax.config.files import read_config
from collapipe_jax.config.system import build_system
from collapipe_jax.files.documents import write_network
from collapipe_jax.simulation.environment import Environment, initial_state, observe


def main(argv: Sequence[str]) -> None:
    """Draw the network, its channel of one round, and write both."""
    options, overrides = make_parser(__doc__, "config", "out").parse_known_args(argv)
    config = read_config(options.config, overrides)
    clusters = config.network.clusters
    system = build_system(config)
    state_key, round_key = jax.random.split(jax.random.key(config.seed))
    state = quick_jit(initial_state)(state_key, system)
    problem = quick_jit(observe)(Environment(system, state, round_key))
    write_network(options.out, problem)
    print(f"{clusters} clusters of {config.network.devices} devices, written: {options.out}")


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
