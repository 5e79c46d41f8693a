"""Decisions a second of the simulation alone, no learning, for every policy.

    python -m experiments.benchmarks.simulation --rounds=100 --realisations=256

Rounds of many realisations (4 clusters, 5 devices, 12 blocks) as one compiled scan under
vmap, and beside it, in the same run, the same rounds by a Python loop over compiled steps
of a single network. About 4 minutes on 2 cores, nearly all of it ``dssra``; ask for
fewer rounds or realisations for a first look.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.environment import (
    Environment,
    initial_state,
    reset,
    simulate,
    simulate_round,
)
from collapipe_jax.edge.policies.registry import POLICIES, Policy, make_policy
from collapipe_jax.edge.system import SystemParams, sample_system
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.system import build_system_params
from experiments.benchmarks.timing import timed

_BLOCKS = 12
_PEER_ROUNDS = 20


def main(argv: Sequence[str]) -> None:
    """Time every policy and print, and if asked write, the figures."""
    parser = make_parser(
        __doc__,
        rounds=100,
        realisations=256,
        batch=(64, "realisations at a time, to bound memory"),
        out=(None, "where to write the figures as JSON"),
    )
    options = parser.parse_args(argv)
    require_positive(rounds=options.rounds, realisations=options.realisations, batch=options.batch)

    config = default.get_config()
    config.model.encoder_blocks = _BLOCKS
    params = build_system_params(config)
    rows = []
    for name in POLICIES:
        policy = make_policy(name, config.policy.micro_batches)
        row = {"policy": name, **_time_batch(params, policy, options), **_time_loop(params, policy)}
        row["speedup"] = row["decisions_per_s"] / row["loop_decisions_per_s"]
        rows.append(row)
        print(
            f"{name}: {row['decisions_per_s']:.0f} decisions/s after {row['compile_s']:.1f} s of "
            f"compilation, median latency {row['median_latency_s']:.3g} s; Python loop "
            f"{row['loop_decisions_per_s']:.1f} decisions/s, ratio {row['speedup']:.1f}"
        )
    if options.out:
        sizes = {name: getattr(options, name) for name in ("rounds", "realisations", "batch")}
        figures = {"device": jax.devices()[0].device_kind, **sizes, "policies": rows}
        write_json(Path(options.out), figures)
        print(f"written: {options.out}")


def _time_batch(params: SystemParams, policy: Policy, options: argparse.Namespace) -> dict:
    """Compile time and decisions a second of one scan under vmap."""

    def latencies(keys):
        def one(key):
            return simulate(reset(key, params), policy, options.rounds).cost.latency_s

        return jax.lax.map(one, keys, batch_size=min(options.batch, options.realisations))

    keys = jax.random.split(jax.random.key(0), options.realisations)
    compile_s, compiled = timed(lambda: jax.jit(latencies).lower(keys).compile())
    run_s, latency_s = timed(lambda: compiled(keys))
    return {
        "compile_s": compile_s,
        "run_s": run_s,
        "decisions_per_s": latency_s.size / run_s,
        "median_latency_s": float(np.median(latency_s)),
    }


def _time_loop(params: SystemParams, policy: Policy) -> dict:
    """The peer: a Python loop over rounds of one network, each a compiled step."""
    step = jax.jit(
        lambda key, system, state: simulate_round(Environment(system, state, key), policy)
    )
    system = jax.jit(sample_system)(jax.random.key(0), params)
    state = initial_state(jax.random.key(1), system)
    keys = jax.random.split(jax.random.key(2), _PEER_ROUNDS)
    jax.block_until_ready(step(keys[0], system, state))  # compiles

    def rounds():
        reached = state
        for key in keys:
            reached, _ = step(key, system, reached)
        return reached

    run_s, _ = timed(rounds)
    return {"loop_decisions_per_s": _PEER_ROUNDS / run_s}


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
