"""Policies of data-parallel learning: every device trains a copy of the model.

Both share the D2E band equally at full power and ignore energy and losses; ``vanilla_fl``
ignores memory too. Source: docs/system-model.md, section 6.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from collapipe_jax.cost.client_round import model_ends
from collapipe_jax.cost.decision import ClientDecision
from collapipe_jax.cost.memory import block_capacity
from collapipe_jax.cost.problem import RoundProblem


def vanilla_fl(problem: RoundProblem) -> ClientDecision:
    """Federated averaging (McMahan et al. 1602.05629): every device trains the whole model.

    The decision may exceed memory and budgets.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    model_ends(problem.workload)
    return _with_all_clients(problem, jnp.int32(problem.workload.blocks), whole_model=True)


def splitfed(problem: RoundProblem) -> ClientDecision:
    """Split federated learning (Thapa et al. 2004.12088): the first blocks on every device.

    As many as fit the smallest participating device, but at most half of them; where none
    fits, clients train the embedding alone. The decision may exceed budgets, and memory where
    not even the embedding fits.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    work, memory_bytes = problem.workload, problem.compute.memory_bytes
    samples = split_batch(work.batch, memory_bytes > 0)
    largest = jnp.max(samples, axis=1, keepdims=True)
    room_bytes = memory_bytes - model_ends(work).embedding_static_bytes
    fits = block_capacity(work.replace(batch=largest), room_bytes, 1)
    blocks = jnp.min(fits, where=samples > 0, initial=work.blocks // 2)
    return _with_all_clients(problem, blocks, whole_model=False)


def split_batch(batch: Array, available: Bool[Array, "N K"]) -> Int[Array, "N K"]:
    """A mini-batch over the available devices, as evenly as integers allow.

    The first devices get the remainder.
    """
    count = jnp.sum(available, axis=1, keepdims=True)
    share, remainder = jnp.divmod(jnp.asarray(batch, jnp.int32), jnp.maximum(count, 1))
    rank = jnp.cumsum(available, axis=1) - 1
    return jnp.where(available, share + (rank < remainder), 0).astype(jnp.int32)


def _with_all_clients(
    problem: RoundProblem, client_blocks: Array, *, whole_model: bool
) -> ClientDecision:
    """All available devices, with equal shares and full power."""
    radio = problem.radio
    samples = split_batch(problem.workload.batch, problem.compute.memory_bytes > 0)
    participates = samples > 0
    clients = jnp.maximum(jnp.sum(participates), 1)
    return ClientDecision(
        samples=samples,
        client_blocks=client_blocks,
        d2e_share=jnp.where(participates, 1.0 / clients, 0.0),
        d2e_power_w=jnp.where(participates, radio.d2e_power_max_w[:, None], 0.0),
        whole_model=whole_model,
    )
