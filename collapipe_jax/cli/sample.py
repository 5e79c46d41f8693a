"""Write a network drawn from a configuration to a file, to be planned and evaluated.

    collapipe sample --config=default --out=NET.json

Any key may be set on the way, the seed for one: ``--config.seed=3``.
"""

from collections.abc import Sequence

import jax

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.environment import Environment, initial_state, observe
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system
from collapipe_jax.runs.documents import write_network


def main(argv: Sequence[str]) -> None:
    """Draw the network, its channel of one round, and write both."""
    options, overrides = make_parser(__doc__, "config", "out").parse_known_args(argv)
    config = read_config(options.config, parse_overrides(overrides))
    if (least := config.model.min_cluster_blocks) >= 0:
        problem, remedy = "a network on file has no place for it", "Leave it out; plan takes it"
        raise InputError("model.min_cluster_blocks", least, problem, remedy)
    clusters = config.network.clusters
    system = build_system(config)
    state_key, round_key = jax.random.split(jax.random.key(seed_of(config, "network")))
    state = quick_jit(initial_state)(state_key, system)
    problem = quick_jit(observe)(Environment(system, state, round_key))
    write_network(options.out, problem)
    print(f"{clusters} clusters of {config.network.devices} devices, written: {options.out}")
