"""The cost of a round, as policies, simulations and figures read it."""

from typing import NamedTuple

from jax import Array

from collapipe_jax.cost.latency import LatencyParts


class Flows(NamedTuple):
    """Stages of both flows of a local step in order; a skipped device and its hop take 0.

    Attributes:
      forward_s: embedding, hop, device, hop, ..., device, hop, uplink, decoder,
        ``[N, 2 K + 4]``.
      backward_s: downlink, hop, device, ..., hop, embedding, ``[N, 2 K + 3]``.
    """

    forward_s: Array
    backward_s: Array


class ClientTimes(NamedTuple):
    """Times of a client in a round, ``[N, K]`` each.

    Attributes:
      download_s, upload_s: of its part of the model.
      computing_s: of all local steps, on the client and on the edge server for it.
      messages_s: activations and gradients of all local steps.
    """

    download_s: Array
    computing_s: Array
    messages_s: Array
    upload_s: Array


class RoundCost(NamedTuple):
    """Cost of one round; entries are infinite where a message cannot be sent.

    Attributes:
      latency_s: of the round, scalar.
      cluster_latency_s: ``[N]``.
      compute_latency_s: of the round, compute stages alone.
      parts: latency of every cluster by part.
      flows: stages of a micro-batch, for a timeline; None where there is no pipeline.
      energy_j: of every node, ``[N, K + 1]``.
      memory_bytes: of every device, ``[N, K]``.
      loss_probability: of a micro-batch, ``[N]``; of clients, ``[N, K]``.
      divergence: of the round.
      objective: drift plus penalty, and the cost of switching where there is one.
      absent: clusters that sit out, ``[N]``.
      clients: times of every client; None where there is a pipeline.
    """

    latency_s: Array
    cluster_latency_s: Array
    compute_latency_s: Array
    parts: LatencyParts
    flows: Flows | None
    energy_j: Array
    memory_bytes: Array
    loss_probability: Array
    divergence: Array
    objective: Array
    absent: Array
    clients: ClientTimes | None = None
