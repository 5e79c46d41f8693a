"""Plain dictionaries of networks and decisions as the package's structs.

`jax.device_put` compiles nothing; `jnp.asarray` does so for every shape.
"""

import jax
import numpy as np

from collapipe_jax.edge.cost.convergence import Learning
from collapipe_jax.edge.cost.decision import Decision, Routes
from collapipe_jax.edge.cost.problem import (
    Control,
    EmbeddingRows,
    RoundProblem,
    SecureExchange,
    Signalling,
    Workload,
)
from collapipe_jax.edge.network.channel import RADIO_LAWS, Radio
from collapipe_jax.edge.network.devices import Compute


def as_problem(network, put=jax.device_put):
    """The package's problem, in the precision that is switched on.

    Its numbers are what `put` makes of arrays in NumPy.
    """

    def arrays(section, *left_out):
        kept = {key: value for key, value in network[section].items() if key not in left_out}
        return {key: put(np.asarray(value)) for key, value in kept.items()}

    compute, secure = network["compute"], network.get("secure_aggregation")
    signals, rows = network.get("signalling"), network.get("embedding_rows")
    speed = np.asarray(compute["flops_per_s"], float)
    joules_per_flop = np.asarray(compute["energy_coefficient"], float) * speed**2
    return RoundProblem(
        workload=Workload(
            **arrays("workload", "blocks", "schedule"),
            blocks=network["workload"]["blocks"],
            schedule=network["workload"].get("schedule", "gpipe"),
        ),
        radio=Radio(
            **arrays("radio", *RADIO_LAWS),
            **{name: law for name, law in network["radio"].items() if name in RADIO_LAWS},
        ),
        compute=Compute(
            **arrays("compute", "energy_coefficient"),
            joules_per_flop=put(joules_per_flop),
        ),
        learning=Learning(**arrays("learning")),
        control=Control(**arrays("control")),
        secure_aggregation=secure and SecureExchange(**arrays("secure_aggregation")),
        signalling=signals and Signalling(**arrays("signalling")),
        embedding_rows=rows and EmbeddingRows(**arrays("embedding_rows")),
    )


def as_decision(decision):
    """The package's decision, in the precision that is switched on."""
    names = [key for key in decision if key not in ("format", "policy", "routes")]
    routes = decision.get("routes")
    if routes is not None:
        routes = Routes(
            **{key: jax.device_put(np.asarray(number)) for key, number in routes.items()}
        )
    numbers = {key: jax.device_put(np.asarray(decision[key])) for key in names}
    return Decision(**numbers, routes=routes)
