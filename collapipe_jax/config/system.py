"""From a configuration to a network, in linear SI units."""

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from collapipe_jax.compilation import quick_jit
from collapipe_jax.control.budget_floors import control_unit_floor_j, device_budget_floor_j
from collapipe_jax.control.effective_queues import PriceParams
from collapipe_jax.cost.divergence import Learning, local_steps_drift
from collapipe_jax.cost.feasibility import can_run, usable_blocks
from collapipe_jax.cost.workload import Workload, encoder_workload
from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.federated.optimizers import state_bytes_per_parameter
from collapipe_jax.network.channel import RATE_LAWS
from collapipe_jax.network.devices import DeviceParams, check_profiles
from collapipe_jax.network.dynamics import DynamicsParams
from collapipe_jax.network.mobility import MobilityParams
from collapipe_jax.network.propagation import PATH_LOSS_LAWS, PropagationParams
from collapipe_jax.network.topology import ORDERS, TopologyParams
from collapipe_jax.simulation.system import (
    ControlParams,
    EdgeSystem,
    MoveParams,
    RadioParams,
    SystemParams,
    sample_system,
)
from collapipe_jax.tasks.registry import TASKS
from collapipe_jax.units import db_to_linear, dbm_to_w

_LONGEST_ROUND_S = 1e9


def build_system(config: ConfigDict, cluster_weight: np.ndarray) -> EdgeSystem:
    """Draw the network of a configuration and check that it can work.

    Args:
      config: the configuration.
      cluster_weight: ``[N]``.

    Raises:
      InputError: if no cluster can hold the encoder, a round never ends, or, where devices
        are always there and stand still, a budget is under its floor.
    """
    system = quick_jit(sample_system)(
        system_key(config.seed), build_system_params(config, cluster_weight)
    )
    check_can_run(system)
    check_latency(system)
    # Rounds that a cluster sits out cost nothing, and who walks is elsewhere in the next round:
    # the floors of the start then bind nobody.
    if config.dynamics.availability == 1.0 and config.dynamics.speed_m_per_s == 0.0:
        check_budgets(system)
    return system


def system_key(seed: int) -> jax.Array:
    """Key from which the network of a seed is drawn."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def check_can_run(system: EdgeSystem) -> None:
    """Check that some cluster can hold the encoder.

    Raises:
      InputError: otherwise.
    """
    problem = system.mean_problem
    if not np.any(can_run(problem)):
        fewest = usable_blocks(problem, jnp.max(problem.workload.micro_batch_choices))
        most = int(jnp.max(jnp.sum(fewest, axis=1)))
        raise InputError(
            "model.encoder_blocks",
            problem.workload.blocks,
            f"no cluster can ever hold the encoder; the largest has room for {most} blocks",
            "Shrink the model or the batch, or raise devices.memory_share or network.devices",
        )


def check_latency(system: EdgeSystem) -> None:
    """Check that the static pipeline ends a round at mean gains, within thirty years.

    Raises:
      InputError: otherwise.
    """
    latency_s = float(system.mean_problem.control.reference_latency_s)
    if not 0.0 < latency_s < _LONGEST_ROUND_S:
        raise InputError(
            "radio",
            f"a round of {latency_s:.3g} s",
            "no round ever ends: a rate of a link or the speed of a device is out of all bounds",
            "Correct a power, bandwidth, noise, distance or speed",
        )


def check_budgets(system: EdgeSystem) -> None:
    """Check Slater's condition: every budget exceeds what the least decision spends.

    Raises:
      InputError: naming the budget and its floor.
    """
    problem = system.mean_problem
    budget_j = np.asarray(problem.control.energy_budget_j)
    floors = {
        "control.control_unit_budget_j": (
            budget_j[:, 0],
            np.asarray(control_unit_floor_j(problem)),
        ),
        "control.device_budget_j": (budget_j[:, 1], device_budget_floor_j(problem)),
    }
    for key, (budget, floor) in floors.items():
        worst = int(np.argmax(floor - budget))
        if budget[worst] <= floor[worst]:
            raise InputError(
                key,
                float(budget[worst]),
                f"under the energy floor of {floor[worst]:.4g} J a round in cluster {worst}, so "
                "that no policy could keep it",
                f"Raise it above {floor[worst]:.4g}",
            )


def build_system_params(config: ConfigDict, cluster_weight: np.ndarray) -> SystemParams:
    """Parameters from which networks are drawn, in linear SI units.

    Args:
      config: the configuration.
      cluster_weight: ``[N]``.
    """
    propagation = config.propagation
    for key in ("d2e_path_loss", "d2d_path_loss"):
        if propagation[key] not in PATH_LOSS_LAWS:
            known = ", ".join(PATH_LOSS_LAWS)
            raise InputError(
                f"propagation.{key}", propagation[key], "unknown law", f"Choose among: {known}"
            )
    order = config.network.order
    if order not in ORDERS:
        remedy = f"Choose among: {', '.join(ORDERS)}"
        raise InputError("network.order", order, "unknown order", remedy)
    return SystemParams(
        topology=TopologyParams(**config.network),
        propagation=PropagationParams(**propagation),
        dynamics=_build_dynamics(config.dynamics),
        mobility=_build_mobility(config.dynamics),
        devices=_build_devices(config.devices),
        radio=_build_radio(config.radio),
        workload=build_workload(config),
        learning=_build_learning(config, cluster_weight),
        control=_build_control(config),
    )


def _build_learning(config: ConfigDict, cluster_weight: np.ndarray) -> Learning:
    """Constants of the bound that ``learning.bound`` names; both names are checked before."""
    learning, steps = config.learning, config.training.local_steps
    drift = None
    if learning.bound == "local_steps":
        drift = local_steps_drift(learning.step_smoothness, steps, learning.gradient_heterogeneity)
    return Learning(
        cluster_weight=jnp.asarray(cluster_weight, jnp.float32),
        gradient_variance=jnp.asarray(learning.gradient_variance),
        gradient_heterogeneity=jnp.asarray(learning.gradient_heterogeneity),
        drift=drift,
    )


_WALK = tuple(MobilityParams.__dataclass_fields__)


def _build_dynamics(dynamics: ConfigDict) -> DynamicsParams:
    return DynamicsParams(**{key: value for key, value in dynamics.items() if key not in _WALK})


def _build_mobility(dynamics: ConfigDict) -> MobilityParams | None:
    if dynamics.speed_m_per_s == 0.0:
        return None
    return MobilityParams(**{key: dynamics[key] for key in _WALK})


def _build_devices(devices: ConfigDict) -> DeviceParams:
    check_profiles("devices.control_unit", (devices.control_unit,))
    check_profiles("devices.kinds", tuple(devices.kinds))
    values = {key: value for key, value in devices.items() if key != "kinds"}
    return DeviceParams(devices=tuple(devices.kinds), **values)


def _build_radio(radio: ConfigDict) -> RadioParams:
    if radio.rate_law not in RATE_LAWS:
        known = ", ".join(RATE_LAWS)
        raise InputError("radio.rate_law", radio.rate_law, "unknown law", f"Choose among: {known}")
    density_w_per_hz = dbm_to_w(radio.noise_density_dbm_per_hz)
    return RadioParams(
        d2e_bandwidth_hz=jnp.asarray(radio.d2e_bandwidth_hz),
        d2d_bandwidth_hz=jnp.asarray(radio.d2d_bandwidth_hz),
        bs_noise_w_per_hz=density_w_per_hz * db_to_linear(radio.bs_noise_figure_db),
        node_noise_w_per_hz=density_w_per_hz * db_to_linear(radio.node_noise_figure_db),
        d2e_interference_w=jnp.asarray(radio.d2e_interference_w),
        d2d_activity=jnp.asarray(radio.d2d_activity),
        snr_gap=db_to_linear(radio.snr_gap_db),
        max_spectral_efficiency=jnp.asarray(radio.max_spectral_efficiency),
        bs_power_w=dbm_to_w(radio.bs_power_dbm),
        d2e_power_max_w=dbm_to_w(radio.d2e_power_max_dbm),
        d2d_power_max_w=dbm_to_w(radio.d2d_power_max_dbm),
        control_unit_power_max_w=dbm_to_w(radio.control_unit_power_max_dbm),
        outage_threshold=db_to_linear(radio.outage_threshold_db),
        harq_attempts=jnp.asarray(float(radio.harq_attempts)),
        transport_block_bits=jnp.asarray(radio.transport_block_bits),
        rate_law=radio.rate_law,
    )


def _build_control(config: ConfigDict) -> ControlParams:
    control = {key: jnp.asarray(value) for key, value in config.control.items()}
    prices = PriceParams(**{key: control.pop(key) for key in PriceParams.__dataclass_fields__})
    moves = MoveParams(price=control.pop("move_price"), hysteresis=control.pop("hysteresis"))
    # Without either nothing is carried from round to round, nor computed.
    free = config.control.move_price == config.control.hysteresis == 0.0
    return ControlParams(
        reference_micro_batches=config.policy.micro_batches,
        moves=None if free else moves,
        prices=prices,
        **control,
    )


def build_workload(config: ConfigDict) -> Workload:
    """Work of a round, from the sizes of the model that is trained.

    Raises:
      InputError: on an unknown optimiser.
    """
    model, training = config.model, config.training
    with under_keys({"optimizer.name": "training.client_optimizer"}):
        state_bytes = state_bytes_per_parameter(training.client_optimizer)
    plain = encoder_workload(
        width=model.width,
        heads=model.heads,
        feed_forward_width=model.feed_forward_width,
        encoder_blocks=model.encoder_blocks,
        dropout=model.dropout_rate > 0,
        rematerialise=model.rematerialise,
        batch=training.batch,
        local_steps=training.local_steps,
        micro_batch_choices=jnp.array(training.micro_batch_choices),
        state_bytes_per_parameter=state_bytes,
        **config.payload,
        **TASKS[config.task.kind].count_work(config)._asdict(),
    )
    return jax.tree.map(jnp.asarray, plain)
