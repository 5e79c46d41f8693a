"""What secure aggregation costs a round: bits, seconds, and the time to simulate it.

    python -m experiments.benchmarks.secure_aggregation --config=default --clusters=4,32,256

Prices rounds of ``control_unit_fl`` on drawn networks with and without secure aggregation, once
with a ring of 32 bits and once with the fewest that hold sums of 16-bit inputs. The expansion of
such inputs by Bonawitz et al. (2017, section 7) is printed beside it. Latencies are medians over
networks; that of the barriers is the largest. Times to simulate are those of the mean of vectors of
``--entries`` numbers, in the clear and by the protocol.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cli.options import make_parser, read_counts, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.edge.cost.client_round import client_links, model_ends
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms import secure_messages
from collapipe_jax.edge.policies.client_policies import control_unit_fl
from collapipe_jax.edge.system import SystemParams, sample_system
from collapipe_jax.learning.federated.aggregation import aggregate
from collapipe_jax.learning.federated.secure_aggregation import SecureAggregation, secure_mean
from collapipe_jax.runs.config.files import read_config
from collapipe_jax.runs.config.system import build_system_params
from experiments.benchmarks.timing import in_turns

_INPUT_BITS = 16
_SECRET_BITS = 256


def main(argv: Sequence[str]) -> None:
    """Print one table of prices and one of times."""
    options = make_parser(
        __doc__,
        "config",
        clusters=("4,32,256", "numbers of clusters, with commas"),
        networks=("64", "drawn networks"),
        entries=("5000", "numbers of a vector whose simulated mean is timed"),
    ).parse_args(argv)
    counts = read_counts("--clusters", options.clusters)
    (networks,) = read_counts("--networks", options.networks)
    (entries,) = read_counts("--entries", options.entries)
    prices = [price(options.config, clusters, networks) for clusters in counts]
    rows = [row for own in prices for row in own]
    headings = "clusters", "ring", "Mbit", "secure Mbit", "ratio", "paper"
    headings += "round s", "secure s", "ratio of s", "masks s", "barriers s"
    console_for_tables(120).print(make_table(headings, rows, left=0))
    times = [simulated(clusters, entries) for clusters in counts]
    headings = "clusters", "mean ms", "secure mean ms"
    console_for_tables(60).print(make_table(headings, times, left=0, title=f"{entries} entries"))


def price(name: str, clusters: int, networks: int) -> list[tuple[str, ...]]:
    """Rows of the table of prices: with the ring of the configuration, and one as in the paper."""
    needed = _INPUT_BITS + int(np.ceil(np.log2(clusters)))
    rows = []
    for ring_bits in (32, needed):
        changes = {"network.clusters": clusters, "secure_aggregation.enabled": True}
        changes |= {"secure_aggregation.ring_bits": ring_bits}
        params = build_system_params(read_config(name, changes))
        keys = jax.random.split(jax.random.key(0), networks)
        plain, secure, barriers_s = map(np.asarray, price_networks(params, keys))
        work, exchange = params.workload, params.secure_aggregation
        assert exchange is not None
        clear = float(work.model_bits + model_ends(work).decoder_param_bits)
        sent = secure_messages(exchange, clear, jnp.asarray(float(clusters)))
        total = float(sent.upload_bits + sent.public_key_bits + sent.share_bits)
        paper = expansion(clusters, clear / _INPUT_BITS, needed)
        bits = f"{clear / 1e6:.1f}", f"{total / 1e6:.1f}", f"{total / clear:.3f}", f"{paper:.3f}"
        latency_s = tuple(f"{np.median(each):.1f}" for each in (plain, secure))
        ratio, masks_s = np.median(secure / plain), float(sent.mask_s + sent.unmask_s)
        times = *latency_s, f"{ratio:.3f}", f"{masks_s:.3f}", f"{barriers_s.max():.3f}"
        rows.append((str(clusters), str(ring_bits), *bits, *times))
    return rows


def expansion(users: int, entries: float, ring_bits: int) -> float:
    """Communication of a user over that in the clear, by section 7 of Bonawitz et al. (2017)."""
    secrets = _SECRET_BITS * (7 * users - 4)
    return (secrets + entries * ring_bits) / (entries * _INPUT_BITS)


@jax.jit
def price_networks(params: SystemParams, keys: jax.Array) -> tuple[jax.Array, ...]:
    """Latencies without and with secure aggregation, and of its barriers, by network."""

    def one(key: jax.Array) -> tuple[jax.Array, ...]:
        problem = sample_system(key, params).mean_problem
        decision, plain = control_unit_fl(problem), problem.replace(secure_aggregation=None)
        latencies = (evaluate(each, decision).latency_s for each in (plain, problem))
        return *latencies, barrier_s(problem, decision)

    return jax.lax.map(one, keys)


def barrier_s(problem: RoundProblem, decision: ClientDecision) -> jax.Array:
    """Most that waiting for the slowest in every exchange adds to the latency."""
    exchange, links = problem.secure_aggregation, client_links(problem, decision)
    assert exchange is not None
    parties = len(links.uplink_bit_s)
    up_bits, down_bits = 3.0 * parties * exchange.secret_bits, 2.0 * parties * exchange.secret_bits
    return up_bits * jnp.ptp(links.uplink_bit_s) + down_bits * jnp.ptp(links.downlink_bit_s)


def simulated(clusters: int, entries: int) -> tuple[str, ...]:
    """A row of the table of times."""
    updates = jax.random.normal(jax.random.key(1), (clusters, entries))
    shares = jnp.full(clusters, 1.0 / clusters)
    rule = SecureAggregation(ring_bits=32, clip=8.0, threshold=0.66, dropout_probability=0.05)
    plain, secure = jax.jit(aggregate), jax.jit(secure_mean)
    works = {
        "plain": lambda: jax.block_until_ready(plain(updates, shares)),
        "secure": lambda: jax.block_until_ready(
            secure(rule, updates, shares, {}, jax.random.key(2))
        ),
    }
    times_s = in_turns(works, 3)
    return str(clusters), *(f"{1e3 * np.median(times_s[name]):.1f}" for name in works)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
