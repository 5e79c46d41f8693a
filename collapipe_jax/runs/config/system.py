"""From a configuration to a network, in linear SI units."""

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.quantity import Struct, linear_name, quantities, to_linear
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.cost.convergence import Learning, local_steps_drift
from collapipe_jax.edge.cost.feasibility import can_run, usable_blocks
from collapipe_jax.edge.cost.problem import (
    ModelEnds,
    RoundProblem,
    SecureExchange,
    Signalling,
    SwitchingParams,
    Workload,
)
from collapipe_jax.edge.network.channel import RADIO_LAWS, DynamicsParams
from collapipe_jax.edge.network.devices import DeviceParams
from collapipe_jax.edge.network.mobility import MobilityParams
from collapipe_jax.edge.network.propagation import PropagationParams, TopologyParams
from collapipe_jax.edge.policies.registry import policy_entry
from collapipe_jax.edge.queues import (
    EffectiveQueueParams,
    control_unit_floor_j,
    device_budget_floor_j,
)
from collapipe_jax.edge.system import (
    ControlParams,
    EdgeSystem,
    NetworksOnFile,
    RadioParams,
    SystemParams,
    sample_system,
)
from collapipe_jax.learning.federated import quantisation
from collapipe_jax.learning.federated.optimizers import (
    OPTIMIZERS,
    bytes_held,
    numbers_per_parameter,
)
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_counts, recomputed_flops
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.task import ModelCounts
from collapipe_jax.runs.config.checks import CheckedConfig, typed_config
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.embedding_rows import build_embedding_rows

_LONGEST_ROUND_S = 1e9
_NETWORKS_TRIED = 3


def build_system(config: Config, cluster_weight: np.ndarray | None = None) -> EdgeSystem:
    """Draw the network of a configuration, or read it, and check that it can work.

    Of a folder with several networks each seed takes the next one. Clusters have the weights
    ``cluster_weight [N]``, by default equal ones.

    Raises:
      InputError: if no cluster can hold the encoder, or no control unit the embedding, a round
        never ends, or, where devices are always available and stand still, a budget is under its
        floor.
    """
    return make_system(config, build_system_params(config, cluster_weight))


def make_system(config: Config, params: SystemParams) -> EdgeSystem:
    """As :func:`build_system`, of the parameters of a configuration."""
    seed = seed_of(config, "network")
    system = quick_jit(sample_system)(system_key(seed), params, seed)
    _check_can_run(system.mean_problem)
    _check_latency(system.mean_problem)
    # A cluster that does not participate in a round spends nothing, and a device that walks is
    # elsewhere in the next round: the floors of the start then bind nothing.
    if _floors_bind(config):
        _check_budgets(system.mean_problem)
    return system


def _floors_bind(config: Config) -> bool:
    return config.dynamics.availability == 1.0 and config.dynamics.speed_m_per_s == 0.0


def _check_configured_budgets(config: Config, params: SystemParams) -> None:
    """Refuse budgets that no policy could keep on any of a few networks of a configuration.

    Where presence is random, or devices walk, floors are no conditions: then a warning tells of
    them. A network that is below its floors alone is no reason, since networks are drawn.

    Raises:
      InputError: naming the budget that is too low on all of them.
    """
    draw, errors = quick_jit(sample_system), []
    for seed in range(_NETWORKS_TRIED):
        problem = draw(system_key(seed), params, seed).mean_problem
        if not np.any(can_run(problem)):
            continue
        try:
            _check_budgets(problem)
        except InputError as error:
            errors.append(error)
        else:
            return
    if errors and _floors_bind(config):
        raise errors[0]
    if errors:
        text = f"{errors[0]} Clusters may still keep it in rounds that they sit out"
        warnings.warn(f"{text}.", InputWarning, stacklevel=2)


def system_key(seed: int | jax.Array) -> jax.Array:
    """Key from which the network of a seed is drawn."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def _check_can_run(problem: RoundProblem) -> None:
    if not np.any(can_run(problem)):
        fewest = usable_blocks(problem, jnp.max(problem.workload.micro_batch_choices))
        most = int(jnp.max(jnp.sum(fewest, axis=1)))
        held = int(problem.workload.cluster_blocks)
        why = f"no cluster can ever hold {held} blocks; the largest has room for {most}"
        remedy = (
            "Shrink the model or the batch, or raise devices.memory_share, network.devices or "
            "model.server_blocks"
        )
        raise InputError("model.encoder_blocks", problem.workload.blocks, why, remedy)
    limit_bytes, ends = problem.compute.control_unit_memory_bytes, problem.workload.ends
    if limit_bytes is not None and ends is not None:
        needed, most = float(ends.embedding_static_bytes), float(jnp.max(limit_bytes))
        if needed > most:
            why = f"its embedding takes {needed:.4g} bytes, a control unit has {most:.4g} at most"
            remedy = "Raise devices.memory_share, or take a smaller vocabulary or width"
            raise InputError("model", "of this size", why, remedy)


def _check_latency(problem: RoundProblem) -> None:
    """Refuse a static pipeline whose round at mean gains lasts thirty years."""
    latency_s = float(problem.control.reference_latency_s)
    if not 0.0 < latency_s < _LONGEST_ROUND_S:
        why = "no round ever ends: a rate of a link or the speed of a device is out of all bounds"
        remedy = "Correct a power, bandwidth, noise, distance or speed"
        raise InputError("radio", f"a round of {latency_s:.3g} s", why, remedy)


def _check_budgets(problem: RoundProblem) -> None:
    """Refuse a budget that the least decision spends: it would break Slater's condition."""
    budget_j = np.asarray(problem.control.energy_budget_j)
    for key, budget, floor in (
        ("control_unit_budget_j", budget_j[:, 0], np.asarray(control_unit_floor_j(problem))),
        ("device_budget_j", budget_j[:, 1], device_budget_floor_j(problem)),
    ):
        worst = int(np.argmax(floor - budget))
        if budget[worst] <= floor[worst]:
            least = f"{floor[worst]:.4g}"
            why = f"no policy could keep it: cluster {worst} spends {least} J a round or more"
            value = float(f"{budget[worst]:.6g}")  # as it was given, not as a float32
            raise InputError(f"control.{key}", value, why, f"Raise it above {least}")


def system_params(config: Config, cluster_weight: np.ndarray | None = None) -> SystemParams:
    """Parameters from which networks are drawn, in linear SI units.

    Args:
      config: as of :func:`read_config`.
      cluster_weight: ``[N]`` with the sum 1; equal ones by default.

    Raises:
      InputError: naming the key that is wrong, or all of them; or a budget that no policy could
        keep on any of a few networks.

    Example:
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart"))
      >>> print(f"{params.radio.d2e_power_max_w:.3f} W")  # 23 dBm
      0.200 W
    """
    params = build_system_params(config, cluster_weight)
    _check_configured_budgets(config, params)
    return params


def build_system_params(config: Config, cluster_weight: np.ndarray | None = None) -> SystemParams:
    """Parameters as of :func:`system_params`, whose budgets are not tried."""
    typed = typed_config(config)
    recorded, networks = config.network.file_digest, typed.networks
    # Networks of a configuration that was read before must still be the same.
    if networks is not None and recorded not in ("", typed.config.network.file_digest):
        problem, remedy = "it changed after the configuration was read", "Read that again"
        raise InputError("network.file", config.network.file, problem, remedy)
    return make_system_params(typed, cluster_weight)


def make_system_params(
    checked: CheckedConfig, cluster_weight: np.ndarray | None = None
) -> SystemParams:
    """As :func:`build_system_params`, of a configuration that was judged."""
    config, networks = checked
    control, dynamics, learning = config.control, config.dynamics, config.learning
    drift = None
    if learning.bound == "local_steps":
        steps, heterogeneity = config.training.local_steps, learning.gradient_heterogeneity
        drift = local_steps_drift(learning.step_smoothness, steps, heterogeneity)
    if cluster_weight is None:
        cluster_weight = np.full(config.network.clusters, 1.0 / config.network.clusters)
    weight = jnp.asarray(cluster_weight, jnp.float32)
    geometry = quantities(TopologyParams)
    task = find_task(config.task.kind)
    sizes, work = task.make_sizes(config), task.count_work(config)
    return SystemParams(
        topology=TopologyParams(**{name: config.network[name] for name in geometry}),
        networks=None if networks is None else _with_laws(networks, config.radio),
        propagation=PropagationParams(**config.propagation),
        dynamics=_fill(DynamicsParams, dynamics),
        mobility=_fill(MobilityParams, dynamics) if dynamics.speed_m_per_s else None,
        devices=DeviceParams(**config.devices),
        radio=_build_radio(config.radio),
        workload=_build_workload(config, sizes, work),
        learning=_fill(Learning, learning, cluster_weight=weight, drift=drift),
        control=_fill(
            ControlParams,
            control,
            queue_params=_fill(EffectiveQueueParams, control),
            switching=_build_switching(config, sizes),
            reference_micro_batches=config.policy.micro_batches,
        ),
        secure_aggregation=_build_secure_exchange(config),
        signalling=_build_signalling(config),
        embedding_rows=build_embedding_rows(config, work),
    )


_StructT = TypeVar("_StructT", bound=Struct)


def _fill(cls: type[_StructT], section: Config, **others: Any) -> _StructT:
    """A struct of numbers, from the keys with the names of its fields, and others."""
    own = {name: jnp.asarray(section[name]) for name in quantities(cls) if name in section}
    return cls(**own, **others)


def _with_laws(networks: NetworksOnFile, radio: Config) -> NetworksOnFile:
    """Networks on file, under the laws of the configuration's radio: no document has them."""
    laws = {name: radio[name] for name in RADIO_LAWS}
    return jax.tree.map(jnp.asarray, networks.replace(radio=networks.radio.replace(**laws)))


def _build_switching(config: Config, sizes: EncoderConfig) -> SwitchingParams | None:
    """What changing partitions costs; without that nothing is carried from round to round."""
    control, bits = config.control, None
    # Averaged moments are handed out in every round as it is, and none are left after a reset.
    keeps = config.training.client_moments == "keep"
    state_bytes = OPTIMIZERS[config.training.client_optimizer if keeps else "sgd"]
    state_bytes += _residual_bytes(config)
    if control.moments_move and state_bytes > OPTIMIZERS["sgd"]:
        moment_bits = _block_moment_bits(sizes, state_bytes, config.payload.trained_fraction)
        bits = jnp.asarray(moment_bits)
    if bits is None and control.switching_cost == control.hysteresis == 0.0:
        return None
    return _fill(SwitchingParams, control, block_moment_bits=bits)


def _build_radio(radio: Config) -> RadioParams:
    laws = {name: radio[name] for name in RADIO_LAWS}
    numbers = {name: float(value) for name, value in radio.items() if name not in laws}
    linear: dict[str, Any] = {
        linear_name(name): to_linear(name, value) for name, value in numbers.items()
    }
    if linear["downlink_interference_w"] < 0:
        linear["downlink_interference_w"] = linear["d2e_interference_w"]
    density_w_per_hz = linear.pop("noise_density_w_per_hz")
    return RadioParams(
        bs_noise_w_per_hz=density_w_per_hz * linear.pop("bs_noise_figure"),
        node_noise_w_per_hz=density_w_per_hz * linear.pop("node_noise_figure"),
        **laws,
        **linear,
    )


def _build_signalling(config: Config) -> Signalling | None:
    """Reports and grants, if they count."""
    signals = config.signalling
    if signals.report_bits == signals.grant_bits == 0.0:
        return None
    return _fill(Signalling, signals)


def _build_secure_exchange(config: Config) -> SecureExchange | None:
    """What secure aggregation adds to a round, if it is on.

    Rows of tokens and n-grams have a count each where they are averaged over their readers.
    """
    keys = config.secure_aggregation
    if not keys.enabled:
        return None
    rows, by_row = 0.0, config.training.embedding_rate_factor != 1.0
    if by_row and not config.model.adapter_rank:
        rows = config.task.vocabulary_size + config.model.ngram_buckets
    return _fill(
        SecureExchange,
        keys,
        number_ratio=jnp.asarray(keys.ring_bits / config.payload.parameter_number_bits),
        count_bits=jnp.asarray(keys.ring_bits * (1.0 + rows)),
    )


def _build_workload(config: Config, sizes: EncoderConfig, work: ModelCounts) -> Workload:
    """Work of a round, from the sizes of the model that is trained."""
    training, payload = config.training, dict(config.payload)
    # What travels with every parameter is priced as more bits of it.
    numbers, update_bits = numbers_per_parameter(training), payload.pop("update_number_bits")
    for name in ("error_feedback", "embedding_rows", "row_law_scale", "row_law_exponent"):
        del payload[name]
    parameter_bits = payload["parameter_number_bits"]
    payload["parameter_number_bits"] *= numbers
    plain = encoder_workload(
        sizes,
        schedule=config.pipeline.schedule,
        capacity=config.pipeline.capacity or None,
        server_blocks=config.model.server_blocks,
        batch=training.batch,
        local_steps=training.local_steps,
        micro_batch_choices=jnp.array(training.micro_batch_choices),
        state_bytes_per_parameter=bytes_held(training) + _residual_bytes(config),
        update_ratio=quantisation.update_ratio(update_bits, parameter_bits, numbers),
        **payload,
        **work._asdict(),
    )
    return jax.tree.map(jnp.asarray, plain)


def cuts_of(config: Mapping[str, Any], policy: str) -> np.ndarray | None:
    """Blocks at the edge server that a policy's first round tries, None where nothing is decided.

    Their number does not depend on ``model.min_cluster_blocks``, so that a sweep over it has one
    program. What would leave less to a cluster is the most that leaves as much, again.
    """
    model = config["model"]
    if model["min_cluster_blocks"] < 0 or policy_entry(policy).by_clients:
        return None
    most = model["encoder_blocks"] - model["min_cluster_blocks"]
    return np.minimum(np.arange(model["server_blocks"], model["encoder_blocks"] + 1), most)


def _residual_bytes(config: Config) -> int:
    """Bytes beside the optimiser's of every parameter whose updates are rounded, with feedback.

    A device keeps the start of a round less the residual: one number.
    """
    payload = config.payload
    return NUMBER_BYTES * bool(payload.update_number_bits and payload.error_feedback)


def encoder_workload(
    sizes: EncoderConfig,
    *,
    sequence: int,
    activation_number_bits: int,
    parameter_number_bits: int,
    token_bits: int,
    target_tokens: int,
    state_bytes_per_parameter: int,
    trained_fraction: float = 1.0,
    update_ratio: float = 1.0,
    embedding_parameters: int,
    decoder_parameters: int,
    **others: Any,
) -> Workload:
    """The workload, in plain numbers, of any model whose encoder is a stack of our blocks.

    Args:
      sizes: sizes and kind of the blocks. Where activations are recomputed in the backward
        pass, only a block's input is kept, and backward costs a forward pass more. One block at
        a time then has its activations and as many numbers of their gradients. With adapters,
        they and the decoder are all that is trained.
      sequence: tokens of a sample.
      activation_number_bits, parameter_number_bits: precision on the links.
      token_bits: of a target on the uplink.
      state_bytes_per_parameter: weights, gradient and optimiser state on a device, of a
        parameter that is trained.
      trained_fraction: share of the parameters that is trained, and so has a gradient and a
        state, and travels.
      update_ratio: bits of a parameter on its way up over those on its way down.
      **others: the other fields of :class:`Workload`.
    """
    block, recomputes = block_counts(sizes, sequence), sizes.rematerialise
    backward_flops = block.backward_flops
    if recomputes:
        backward_flops += recomputed_flops(sizes, sequence)
    activations = sequence * sizes.width
    every = block.parameters, embedding_parameters, decoder_parameters
    trained = tuple(trained_fraction * parameters for parameters in every)
    if sizes.adapters is not None:
        trained = block.trained, 0, decoder_parameters
    block_bits, embedding_bits, decoder_bits = (
        float(parameter_number_bits * parameters) for parameters in trained
    )
    frozen_bytes = NUMBER_BYTES, NUMBER_BYTES, NUMBER_BYTES
    if sizes.adapters is not None:
        frozen_bytes = jnp.dtype(sizes.adapters.base_dtype).itemsize, NUMBER_BYTES, NUMBER_BYTES
    block_static, embedding_static, decoder_static = (
        float(frozen * parameters + (state_bytes_per_parameter - frozen) * changing)
        for frozen, parameters, changing in zip(frozen_bytes, every, trained, strict=True)
    )
    # Plain numbers, which a pytree of arrays may hold.
    numbers: dict[str, Any] = {
        "blocks": sizes.encoder_blocks,
        "block_flops": block.flops,
        "backward_ratio": backward_flops / block.flops,
        "activation_bits": float(activation_number_bits * activations),
        "target_bits": float(token_bits * target_tokens),
        "block_param_bits": block_bits,
        "embedding_param_bits": embedding_bits,
        "update_ratio": update_ratio,
        "block_static_bytes": block_static,
        "block_kept_bytes": float(NUMBER_BYTES * activations) if recomputes else block.kept_bytes,
        "block_working_bytes": 2.0 * block.kept_bytes if recomputes else 0.0,
    }
    ends: dict[str, Any] = {
        "decoder_param_bits": decoder_bits,
        "embedding_static_bytes": embedding_static,
        "decoder_static_bytes": decoder_static,
    }
    return Workload(**numbers, **others, ends=ModelEnds(**ends))


def _block_moment_bits(
    sizes: EncoderConfig, state_bytes_per_parameter: int, trained_fraction: float
) -> float:
    """Moments of a block's optimiser on a link, in the precision in which devices compute."""
    moments_bytes = state_bytes_per_parameter - 2 * NUMBER_BYTES
    return float(8 * moments_bytes * trained_fraction * block_counts(sizes, 1).trained)
