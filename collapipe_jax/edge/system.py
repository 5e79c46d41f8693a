"""One network, drawn from its parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from collapipe_jax.core.quantity import Struct, part, positive, quantities, quantity, same
from collapipe_jax.edge.cost.convergence import Learning, lossless_divergence
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.problem import (
    Control,
    EmbeddingRows,
    RoundProblem,
    SecureExchange,
    Signalling,
    SwitchingParams,
    Workload,
)
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.network.channel import DynamicsParams, Radio, RadioConstants
from collapipe_jax.edge.network.devices import Compute, DeviceParams, sample_compute
from collapipe_jax.edge.network.mobility import Mobility, MobilityParams, sample_mobility
from collapipe_jax.edge.network.propagation import (
    Positions,
    PropagationParams,
    TopologyParams,
    large_scale_gain,
    sample_shadowing,
    sample_topology,
)
from collapipe_jax.edge.queues import (
    EffectiveQueueParams,
    control_unit_floor_j,
    empty_queues,
)


class RadioParams(RadioConstants):
    """Radio of a network before its gains are known."""

    d2e_power_max_w: Array = same(Radio, "d2e_power_max_w", shape="")
    d2d_power_max_w: Array = same(
        Radio, "d2d_power_max_w", shape="", meaning="limit of a device's power on the D2D band"
    )
    control_unit_power_max_w: Array = quantity("limit of a control unit's power on the D2D band")


class ControlParams(Struct):
    """Budgets and the trade-off, the same for every network."""

    v: Array = same(Control, "v")
    control_unit_budget_j: Array = positive(
        "time-average energy budget of a control unit", unit="J per round"
    )
    control_unit_margin: Array = quantity(
        "least budget of a control unit over the least energy that its part can take"
    )
    device_budget_j: Array = positive("time-average energy budget of a device", unit="J per round")
    divergence_ratio: Array = quantity(
        "target of the divergence over the divergence of a round without losses", bounds="> 1"
    )
    queue_params: EffectiveQueueParams = part("how policies see the queues")
    switching: SwitchingParams | None = part("cost of switching partitions, if any", default=None)
    reference_micro_batches: int = positive(
        "micro-batches of the static pipeline whose latency is the reference",
        whole=True,
        static=True,
    )


class NetworksOnFile(Struct):
    """Networks that are given; every array has a leading axis of networks."""

    radio: Radio = part("radios at mean gains")
    compute: Compute = part("devices")


class SystemParams(Struct):
    """Everything that a network is drawn from.

    Example:
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart"))
      >>> params.topology.clusters, params.topology.devices
      (3, 4)
    """

    topology: TopologyParams = part("geometry")
    propagation: PropagationParams = part("path loss and shadowing")
    dynamics: DynamicsParams = part("fading and availability over rounds")
    mobility: MobilityParams | None = part("how devices walk, if they do", default=None)
    devices: DeviceParams = part("devices")
    radio: RadioParams = part("radio")
    networks: NetworksOnFile | None = part("networks in place of drawn ones, if any", default=None)
    workload: Workload = part("operations, bits and bytes of a round")
    learning: Learning = part("constants of the convergence bound")
    control: ControlParams = part("budgets and trade-off")
    secure_aggregation: SecureExchange | None = part(
        "what secure aggregation adds to a round, if it is on", default=None
    )
    signalling: Signalling | None = part("reports and grants, if they count", default=None)
    embedding_rows: EmbeddingRows | None = part(
        "rows of the embedding that travel, if not whole tables", default=None
    )


class EdgeSystem(Struct):
    """One network: what does not change over its rounds."""

    mean_problem: RoundProblem = part(
        "the problem of a round at mean gains, with empty queues and every device available; where "
        "devices walk, its gains are those of the start"
    )
    dynamics: DynamicsParams = part("how the network changes")
    mobility: Mobility | None = part("how devices walk, if they do", default=None)
    queue_params: EffectiveQueueParams = part("how policies see the queues")
    switching: SwitchingParams | None = part("cost of switching partitions, if any", default=None)

    def with_cut(self, server_blocks: ArrayLike) -> "EdgeSystem":
        """The network with another number of last blocks at the edge server.

        Budgets, reference latency and divergence target stay as they are.
        """
        return self.replace(mean_problem=self.mean_problem.with_cut(server_blocks))


def sample_system(key: Array, params: SystemParams, index: ArrayLike = 0) -> EdgeSystem:
    """Draw a network: positions, large-scale gains and devices.

    Of networks on file it takes radio and devices of that with the ``index``, modulo their
    number; they have no positions, and nobody walks.

    The reference latency is that of the static pipeline at mean gains, so that ``v``
    weighs latency alike on a fast and on a slow network; further attempts of reliable links do
    not count. The target of divergence is relative to a round without losses of all clusters
    that can ever run. A network in which none can has neither: both are 0, and costs relative
    to them not a number. Where devices walk, all of this and the budgets hold for where they
    start.
    """
    if params.networks is None:
        radio, compute, mobility = _draw(key, params)
    else:
        radio, compute, mobility = *_take(params.networks, index), None
    problem = RoundProblem(
        workload=params.workload,
        radio=radio,
        compute=compute,
        learning=params.learning,
        control=_initial_control(params.control, *radio.d2e_gain.shape),
        secure_aggregation=params.secure_aggregation,
        signalling=params.signalling,
        embedding_rows=params.embedding_rows,
    )
    # Over weak links a static pipeline may need any number of attempts: the scale has none.
    once = problem.replace(radio=radio.replace(retransmissions="free"))
    static = evaluate(once, static_pipeline(once, params.control.reference_micro_batches))
    floor = lossless_divergence(params.learning, params.workload.batch, can_run(problem))
    least_j = params.control.control_unit_margin * control_unit_floor_j(problem)
    budget_j = problem.control.energy_budget_j
    control = problem.control.replace(
        energy_budget_j=budget_j.at[:, 0].max(least_j),
        reference_latency_s=static.latency_s,
        divergence_target=params.control.divergence_ratio * floor,
    )
    return EdgeSystem(
        mean_problem=problem.replace(control=control),
        dynamics=params.dynamics,
        mobility=mobility,
        queue_params=params.control.queue_params,
        switching=params.control.switching,
    )


def sample_positions(key: Array, params: SystemParams) -> Positions:
    """Where the nodes of :func:`sample_system` stand, or start to walk, with the same key."""
    return sample_topology(jax.random.split(key, 3)[0], params.topology)


def _draw(key: Array, params: SystemParams) -> tuple[Radio, Compute, Mobility | None]:
    """Radio at large-scale gains, devices, and how these walk."""
    _, gain_key, device_key = jax.random.split(key, 3)
    topology, mobility = params.topology, None
    position_m = sample_positions(key, params)
    shadowing = sample_shadowing(gain_key, position_m, topology, params.propagation)
    gain = large_scale_gain(position_m, shadowing, topology, params.propagation)
    if params.mobility is not None:
        # A fourth key: the three above are those of a network in which nobody walks.
        walk_key = jax.random.fold_in(key, 3)
        mobility = Mobility(
            params=params.mobility,
            topology=topology,
            propagation=params.propagation,
            start=sample_mobility(walk_key, position_m, shadowing, params.mobility),
        )
    radio = _with_gains(params.radio, gain.d2e, gain.node)
    compute = sample_compute(device_key, params.devices, topology.clusters, topology.devices)
    return radio, compute, mobility


def _take(networks: NetworksOnFile, index: ArrayLike) -> tuple[Radio, Compute]:
    """Radio and devices of one network on file."""
    row = jnp.asarray(index) % len(networks.compute.memory_bytes)
    one = jax.tree.map(lambda leaf: leaf[row], networks)
    return one.radio, one.compute


def _with_gains(params: RadioParams, d2e_gain: Array, node_gain: Array) -> Radio:
    """The radio with its gains, and powers of all nodes."""
    clusters, nodes = d2e_gain.shape
    d2d_power_w = jnp.full((clusters, nodes), params.d2d_power_max_w)
    return Radio(
        **{name: getattr(params, name) for name in quantities(RadioConstants)},
        d2e_power_max_w=jnp.full(clusters, params.d2e_power_max_w),
        d2d_power_max_w=d2d_power_w.at[:, 0].set(params.control_unit_power_max_w),
        **radio_gains(d2e_gain, node_gain),
    )


def radio_gains(d2e_gain: Array, node_gain: Array) -> dict[str, Any]:
    """Gains of a :class:`Radio` by name, from those ``[N, J, N, J]`` between all nodes.

    None is above 1: who is near, unshadowed and not faded receives no more than was sent.
    """
    own = jnp.arange(len(d2e_gain))
    d2e_gain, node_gain = jnp.minimum(d2e_gain, 1.0), jnp.minimum(node_gain, 1.0)
    return {"d2e_gain": d2e_gain, "d2d_gain": node_gain[own, :, own, :], "cross_gain": node_gain}


def _initial_control(control: ControlParams, clusters: int, nodes: int) -> Control:
    """Budgets and empty queues; reference latency and target are not known yet."""
    budget_j = jnp.full((clusters, nodes), control.device_budget_j)
    queues = empty_queues(clusters, nodes)
    return Control(
        v=jnp.asarray(control.v),
        reference_latency_s=jnp.ones(()),
        energy_budget_j=budget_j.at[:, 0].set(control.control_unit_budget_j),
        energy_queue=queues.energy,
        divergence_target=jnp.ones(()),
        divergence_queue=queues.divergence,
    )
