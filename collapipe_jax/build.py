"""From a configuration to structs: the only file that knows ml_collections.

Everything a configuration can get wrong is found here, before any work starts.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from collapipe_jax.cost.divergence import Learning
from collapipe_jax.cost.workload import Workload, transformer_workload
from collapipe_jax.errors import InputError
from collapipe_jax.federated.optimizers import make_optimizer, state_bytes_per_parameter
from collapipe_jax.models.transformer import TransformerConfig
from collapipe_jax.network.channel import RATE_LAWS
from collapipe_jax.network.devices import DeviceParams, check_profiles
from collapipe_jax.network.dynamics import DynamicsParams
from collapipe_jax.network.propagation import PATH_LOSS_LAWS, PropagationParams
from collapipe_jax.network.topology import TopologyParams
from collapipe_jax.scheduling.feasibility import can_run, usable_blocks
from collapipe_jax.scheduling.policies import Policy, make_policy
from collapipe_jax.scheduling.slater import control_unit_floor_j, device_budget_floor_j
from collapipe_jax.system import (
    ControlParams,
    EdgeSystem,
    RadioParams,
    SystemParams,
    sample_system,
)
from collapipe_jax.tasks.split import split_samples
from collapipe_jax.tasks.translation import TranslationData, load_translation
from collapipe_jax.units import db_to_linear, dbm_to_w

_LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 1e30
_LARGEST_LEVEL_DB = 300.0
_LONGEST_ROUND_S = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizers:
    """Who steps what: clusters their clients, the edge server the decoder and the mean."""

    client: optax.GradientTransformation
    decoder: optax.GradientTransformation
    server: optax.GradientTransformation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A configuration made ready to run.

    Attributes:
      config: nested plain dictionary, as it is saved.
      data: corpus, tokenizer and splits.
      cluster_indices: training samples of every cluster.
      cluster_weight: share of the samples, ``[N]``.
      model: sizes.
      optimizers: of clients, decoder and server.
      system: the network.
      policy: who decides.
    """

    config: dict[str, Any]
    data: TranslationData
    cluster_indices: list[np.ndarray]
    cluster_weight: np.ndarray
    model: TransformerConfig
    optimizers: Optimizers
    system: EdgeSystem
    policy: Policy


def build_experiment(config: ConfigDict, default: ConfigDict) -> Experiment:
    """Make a configuration ready, or say what is wrong with it.

    Args:
      config: the configuration.
      default: the default one; it tells which keys there are and of which type.

    Raises:
      InputError: naming key, value and remedy.
    """
    config = ConfigDict(typed_values(config.to_dict(), default.to_dict()))
    check_training(config)
    model = build_model(config)  # cheap checks first, the corpus last
    policy = make_policy(config.policy.name, config.policy.micro_batches)
    optimizers = build_optimizers(config)
    equal = np.full(config.network.clusters, 1.0 / config.network.clusters)
    build_system(config, equal)
    data = load_data(config)
    cluster_indices = split_samples(
        config.seed,
        config.task.split,
        data.keys,
        config.network.clusters,
        config.task.concentration,
        minimum=config.training.batch,
    )
    sizes = np.array([len(indices) for indices in cluster_indices])
    weight = sizes / sizes.sum()
    return Experiment(
        config=config.to_dict(),
        data=data,
        cluster_indices=cluster_indices,
        cluster_weight=weight,
        model=model,
        optimizers=optimizers,
        system=build_system(config, weight),
        policy=policy,
    )


def typed_values(found: Mapping, expected: Mapping, prefix: str = "") -> dict[str, Any]:
    """The values of a configuration, under the keys and with the types of another.

    Returns:
      The values; an integer is made a float and a list a tuple where the other has one.

    Raises:
      InputError: on an unknown or missing key or a wrong type, with the nearest name.
    """
    for key in found:
        if key not in expected:
            near = difflib.get_close_matches(key, expected, n=1)
            remedy = f"Did you mean {prefix}{near[0]}" if near else "Remove it"
            raise InputError(prefix + key, found[key], "unknown key", remedy)
    values = {}
    for key, value in expected.items():
        name = prefix + key
        if key not in found:
            raise InputError(name, None, "the key is missing", f"Add it; its default is {value!r}")
        if isinstance(value, Mapping):
            if not isinstance(found[key], Mapping):
                raise InputError(name, found[key], "not a section", "Give its keys")
            values[key] = typed_values(found[key], value, name + ".")
        else:
            values[key] = _typed_value(name, found[key], value)
    return values


def _typed_value(name: str, found: Any, default: Any) -> Any:
    """A value as the type of its default; numbers within what single precision can hold."""
    kinds = {float: (int, float), tuple: (tuple, list)}
    kind = type(default)
    is_bool_mixed = isinstance(found, bool) != (kind is bool)
    if is_bool_mixed or not isinstance(found, kinds.get(kind, kind)):
        problem = f"not of type {kind.__name__}"
        raise InputError(name, found, problem, f"Give a value like {default!r}")
    if kind is tuple:
        return tuple(_typed_value(name, item, default[0]) for item in found)
    if kind in (int, float):
        _check_range(name, found, default)
    return kind(found)


def _check_range(name: str, number: float, default: float) -> None:
    is_level = name.endswith(("_db", "_dbm", "_dbm_per_hz"))
    largest = _LARGEST_INT if isinstance(default, int) else _LARGEST_FLOAT
    least, most = (-_LARGEST_LEVEL_DB, _LARGEST_LEVEL_DB) if is_level else (0, largest)
    if not least <= number <= most:  # so written, it refuses what is not a number
        problem = f"outside {least:g} to {most:g}"
        raise InputError(name, number, problem, f"Give a number like {default!r}")


def check_training(config: ConfigDict) -> None:
    """Check sizes and counts that must fit each other.

    Raises:
      InputError: naming the first that does not.
    """
    positive = {
        "network": (
            "clusters",
            "devices",
            "cell_radius_m",
            "cluster_radius_m",
            "d2e_min_distance_m",
            "d2d_min_distance_m",
        ),
        "propagation": ("d2e_shadowing_distance_m",),
        "policy": ("micro_batches",),
        "model": ("encoder_blocks", "decoder_blocks"),
        "training": ("rounds", "local_steps", "batch", "learning_rate", "server_learning_rate"),
        "evaluation": ("every_rounds", "beams"),
        "control": ("control_unit_budget_j", "device_budget_j"),
        "devices": ("utilisation", "memory_share", "es_flops_per_s"),
        "radio": (
            "d2e_bandwidth_hz",
            "d2d_bandwidth_hz",
            "max_spectral_efficiency",
            "transport_block_bits",
            "harq_attempts",
        ),
        "payload": ("activation_number_bits", "parameter_number_bits"),
        "task": ("validation_pairs", "test_pairs"),
        "learning": ("gradient_variance",),
    }
    for section, keys in positive.items():
        for key in keys:
            if config[section][key] <= 0:
                raise InputError(
                    f"{section}.{key}", config[section][key], "not positive", "Raise it"
                )
    if config.checkpoint_every_rounds <= 0:
        value = config.checkpoint_every_rounds
        raise InputError("checkpoint_every_rounds", value, "not positive", "Give 1 or more")
    batch, choices = config.training.batch, config.training.micro_batch_choices
    if not choices:
        raise InputError("training.micro_batch_choices", choices, "empty", "Give divisors of batch")
    for choice in choices:
        if choice <= 0 or batch % choice:
            raise InputError(
                "training.micro_batch_choices",
                choice,
                f"the batch of {batch} is not divisible by it",
                "Give divisors of training.batch",
            )
    steps = config.training.rounds * config.training.local_steps
    if config.training.schedule == "cosine" and config.training.warmup_steps >= steps:
        raise InputError(
            "training.warmup_steps",
            config.training.warmup_steps,
            f"no less than the {steps} steps of the run (rounds times local steps)",
            f"Lower it under {steps}",
        )
    if config.control.divergence_ratio <= 1.0:
        raise InputError(
            "control.divergence_ratio",
            config.control.divergence_ratio,
            "at or under its floor 1, the divergence of a round without any loss",
            "Give a ratio above 1",
        )
    for key in ("utilisation", "memory_share"):
        if config.devices[key] > 1.0:
            raise InputError(f"devices.{key}", config.devices[key], "above 1", "Give a share")
    for section, key in (("dynamics", "fading_correlation"), ("dynamics", "availability")):
        if config[section][key] > 1.0:
            raise InputError(f"{section}.{key}", config[section][key], "above 1", "Give 0 to 1")


@contextlib.contextmanager
def _under_keys(names: Mapping[str, str]) -> Iterator[None]:
    """Report what a lower module refuses under the configuration's keys."""
    try:
        yield
    except InputError as error:
        key = names.get(error.key, error.key)
        raise InputError(key, error.value, error.problem, error.remedy) from None


def build_model(config: ConfigDict) -> TransformerConfig:
    """Sizes of the model.

    Raises:
      InputError: if they do not fit each other.
    """
    sizes = ("vocabulary_size", "source_length", "target_length")
    with _under_keys({f"model.{key}": f"task.{key}" for key in sizes}):
        return TransformerConfig(
            **{key: config.task[key] for key in sizes}, **config.model.to_dict()
        )


def build_optimizers(config: ConfigDict) -> Optimizers:
    """Optimisers of clients, decoder and server.

    Raises:
      InputError: on an unknown optimiser or schedule, or numbers that it refuses.
    """
    training = config.training

    def make(key: str, learning_rate: float, **options: Any) -> optax.GradientTransformation:
        with _under_keys({"optimizer.name": key, "optimizer.schedule": "training.schedule"}):
            return make_optimizer(training[key.removeprefix("training.")], learning_rate, **options)

    local = {
        "schedule": training.schedule,
        "warmup_steps": training.warmup_steps,
        "total_steps": training.rounds * training.local_steps,
        "clip_norm": training.clip_norm,
    }
    return Optimizers(
        client=make("training.client_optimizer", training.learning_rate, **local),
        decoder=make("training.decoder_optimizer", training.learning_rate, **local),
        server=make("training.server_optimizer", training.server_learning_rate),
    )


def load_data(config: ConfigDict) -> TranslationData:
    """The corpus, tokenised and split."""
    task = config.task
    corpus = tuple(task.corpus.split("|")) if "|" in task.corpus else task.corpus
    return load_translation(
        corpus=corpus,
        pairs=task.pairs,
        validation_pairs=task.validation_pairs,
        test_pairs=task.test_pairs,
        vocabulary_size=task.vocabulary_size,
        source_length=task.source_length,
        target_length=task.target_length,
        seed=config.seed,
        reverse=task.reverse,
    )


def build_system(config: ConfigDict, cluster_weight: np.ndarray) -> EdgeSystem:
    """Draw the network of a configuration and check that it can work.

    Args:
      config: the configuration.
      cluster_weight: ``[N]``.

    Raises:
      InputError: if no cluster can hold the encoder, a round never ends, or a budget is
        under its floor.
    """
    system = jax.jit(sample_system)(
        system_key(config.seed), build_system_params(config, cluster_weight)
    )
    check_can_run(system)
    check_latency(system)
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
    return SystemParams(
        topology=TopologyParams(**config.network),
        propagation=PropagationParams(**propagation),
        dynamics=DynamicsParams(**config.dynamics),
        devices=_build_devices(config.devices),
        radio=_build_radio(config.radio),
        workload=build_workload(config),
        learning=Learning(
            cluster_weight=jnp.asarray(cluster_weight, jnp.float32),
            **{key: jnp.asarray(value) for key, value in config.learning.items()},
        ),
        control=_build_control(config),
    )


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
    return ControlParams(reference_micro_batches=config.policy.micro_batches, **control)


def build_workload(config: ConfigDict) -> Workload:
    """Work of a round, from the sizes of the model that is trained.

    Raises:
      InputError: on an unknown optimiser.
    """
    model, task, training = config.model, config.task, config.training
    with _under_keys({"optimizer.name": "training.client_optimizer"}):
        state_bytes = state_bytes_per_parameter(training.client_optimizer)
    plain = transformer_workload(
        vocabulary_size=task.vocabulary_size,
        width=model.width,
        heads=model.heads,
        feed_forward_width=model.feed_forward_width,
        encoder_blocks=model.encoder_blocks,
        decoder_blocks=model.decoder_blocks,
        source_length=task.source_length,
        target_length=task.target_length,
        dropout=model.dropout_rate > 0,
        rematerialise=model.rematerialise,
        batch=training.batch,
        local_steps=training.local_steps,
        micro_batch_choices=jnp.array(training.micro_batch_choices),
        state_bytes_per_parameter=state_bytes,
        **config.payload,
    )
    return jax.tree.map(jnp.asarray, plain)
