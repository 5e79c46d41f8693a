"""One round's problem: everything a policy may look at, and a price depends on."""

from flax import struct
from jax import Array

from collapipe_jax.cost.divergence import Learning
from collapipe_jax.cost.switching import Moves
from collapipe_jax.cost.workload import Workload
from collapipe_jax.network.channel import Radio
from collapipe_jax.network.devices import Compute


@struct.dataclass(kw_only=True)
class Control:
    """Budgets, virtual queues and the trade-off between them.

    Attributes:
      v: weight ``V`` of latency against queues.
      reference_latency_s: ``T_ref``, which makes ``v`` mean the same on any network.
      energy_budget_j: time-average budget of every node, ``[N, K + 1]``.
      energy_queue: ``q``, in units of the budget, ``[N, K + 1]``.
      divergence_target: time-average target of the divergence.
      divergence_queue: ``z``, in units of the target.
    """

    v: Array
    reference_latency_s: Array
    energy_budget_j: Array
    energy_queue: Array
    divergence_target: Array
    divergence_queue: Array


@struct.dataclass(kw_only=True)
class RoundProblem:
    """The network, the work and the queues of one round.

    Attributes:
      workload: what is to be computed and sent.
      radio: the channel of this round.
      compute: the devices of this round; a device that is away has memory 0.
      learning: constants of the convergence bound.
      control: budgets and queues.
      moves: price of changing the layout; none, by default.
    """

    workload: Workload
    radio: Radio
    compute: Compute
    learning: Learning
    control: Control
    moves: Moves | None = None

    @property
    def clusters(self) -> int:
        """Number of clusters ``N``."""
        return self.compute.memory_bytes.shape[-2]

    @property
    def devices(self) -> int:
        """Devices of a cluster ``K``."""
        return self.compute.memory_bytes.shape[-1]
