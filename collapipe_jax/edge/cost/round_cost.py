"""The cost of a round, as policies, simulations and figures read it."""

from typing import NamedTuple

from jaxtyping import Array, Float

from collapipe_jax.core.quantity import Struct, part, quantity
from collapipe_jax.edge.cost.latency import LatencyParts


class Flows(NamedTuple):
    """Stages of both flows of a local step in order; a skipped device and its hop take 0.

    Forward they are embedding, hop, device, hop, ..., device, hop, uplink, decoder; backward
    downlink, hop, device, ..., hop, embedding.
    """

    forward_s: Float[Array, "N 2*K+4"]
    backward_s: Float[Array, "N 2*K+3"]


class ClientTimes(NamedTuple):
    """Times of a client in a round; computing and messages of all local steps.

    Download and upload of a hierarchical round include the hop over its control unit.
    """

    download_s: Float[Array, "N K"]
    computing_s: Float[Array, "N K"]  # on the client, and on the edge server for it
    messages_s: Float[Array, "N K"]  # activations and gradients
    upload_s: Float[Array, "N K"]


class RoundCost(Struct):
    """Cost of one round; infinite where a message cannot be sent, see :func:`evaluate`.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> cost = jax.jit(cp.evaluate)(problem, decision)
      >>> cost.energy_j.shape, cost.memory_bytes.shape  # [N, K + 1] and [N, K]
      ((2, 4), (2, 3))
    """

    latency_s: Array = quantity("latency of the round (14)", "T")
    cluster_latency_s: Array = quantity("latency of a cluster (14)", "T_n", "N")
    compute_latency_s: Array = quantity("latency of the compute stages alone (12)")
    parts: LatencyParts = part("latency by part")
    flows: Flows | None = part("stages of a micro-batch, if there is a pipeline")
    energy_j: Array = quantity("energy of a node in the round (16)", "E", "NJ")
    memory_bytes: Array = quantity("memory that a device needs (15)", "mem", "NK")
    control_unit_memory_bytes: Array | None = part(
        "memory that control units need as clients, ``[N]``, if they are", default=None
    )
    server_memory_bytes: Array = quantity("memory that the edge server needs (53)", "mem_{ES}")
    loss_probability: Array = quantity(
        "probability that a micro-batch is lost (7); of client policies for every client, [N, K]",
        "P_n",
        "N",
    )
    divergence: Array = quantity("divergence of the round (19)", r"\Gamma", unit="squared gradient")
    objective: Array = quantity("objective (P2), and the switching cost where there is one")
    absent: Array = part("clusters that do not participate, ``[N]``")
    clients: ClientTimes | None = part("times of every client, if no pipeline", default=None)
