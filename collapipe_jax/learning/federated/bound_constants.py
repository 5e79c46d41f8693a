"""Estimates of the constants of the convergence bound at a model.

They are the constants of docs/system-model.md (17) and (19). A cluster's objective ``F_n`` is
the mean loss of its mini-batches over all trained parameters, the decoder's included, without
dropout and erasures.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from collapipe_jax.learning.federated.aggregation import aggregate, loss_per_token
from collapipe_jax.learning.models.adapters import join, split
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel, example_losses

_POWER_ITERATIONS = 12  # products with the Hessian that estimate the smoothness
Loss = Callable[[PyTree, PyTree], Array]
"""Loss at some parameters of one mini-batch, leaves ``[B, ...]``: a scalar."""


class BoundConstants(NamedTuple):
    """Estimates at one model, all ``[]`` and not negative."""

    # ``sigma^2``, weighted mean over clusters of ``B`` times the variance of a mini-batch's
    # gradient: a sample's, where the loss is a mean over samples
    gradient_variance: Array
    # ``zeta^2``, the largest ``|grad F_n - grad F|^2`` among clusters
    gradient_heterogeneity: Array
    mean_gradient_heterogeneity: Array  # the weighted mean of the same
    gradient_norm_squared: Array  # ``|grad F|^2`` of the weighted mean ``F`` of all clusters
    # A lower estimate of ``L_s``: ``largest_curvature`` on the first mini-batches
    smoothness: Array


@functools.partial(jax.jit, static_argnames="model")
def estimate_constants(
    params: Params,
    batches: Batch,
    weights: Float[Array, " N"],
    key: Key[Array, ""],
    *,
    model: SplitModel,
) -> BoundConstants:
    """``bound_constants`` of a model, which is static, with its training loss.

    A mini-batch's loss is its summed loss over its number of predictions, as in training.
    With one prediction a sample it is a mean. With several it is a ratio, and a sample with
    loss ``l`` and ``c`` predictions counts in the variance, to first order, as
    ``(grad l - c grad F) / mean c``.
    """
    trained, base = split(params, model.sizes.adapters)

    def loss(trained: Params, batch: Batch) -> Array:
        losses, tokens = example_losses(model, join(trained, base), batch)
        return loss_per_token(losses, tokens, jnp.ones_like(losses))

    return bound_constants(loss, trained, batches, weights, key)


def bound_constants(
    loss: Loss, params: PyTree, batches: PyTree, weights: Float[Array, " N"], key: Key[Array, ""]
) -> BoundConstants:
    """Constants from J mini-batches of every cluster.

    With the mean ``g_n`` of a cluster's J gradients and ``v_n = sigma_n^2 / (J B)``, the variance
    of that mean, sampling adds ``v_n (1 - 2 w_n) + V`` to ``|g_n - g|^2`` and ``V`` to ``|g|^2``,
    where ``g = sum_n w_n g_n`` and ``V = sum_n w_n^2 v_n``. Both are subtracted, which makes the
    squares unbiased, and negative ones are set to 0. The largest of several is still biased
    upwards, by about their remaining noise.

    The mini-batches are independent, leaves ``[J, N, B, ...]`` with ``J >= 2``. The weights have
    the sum 1. The key draws the direction that the power iteration starts in.
    """
    groups, _, size = jax.tree.leaves(batches)[0].shape[:3]
    first = jax.tree.map(lambda leaf: leaf[0], batches)  # products with a Hessian are dear
    mean, variance = _mini_batch_gradients(loss, params, batches)
    overall = aggregate(mean, weights)
    noise = variance / groups
    overall_noise = jnp.sum(weights**2 * noise)
    away = jax.vmap(lambda own: _squared_norm(jax.tree.map(jnp.subtract, own, overall)))(mean)
    heterogeneity = away - noise * (1.0 - 2.0 * weights) - overall_noise
    return BoundConstants(
        gradient_variance=size * jnp.sum(weights * variance),
        gradient_heterogeneity=jnp.maximum(jnp.max(heterogeneity), 0.0),
        mean_gradient_heterogeneity=jnp.maximum(jnp.sum(weights * heterogeneity), 0.0),
        gradient_norm_squared=jnp.maximum(_squared_norm(overall) - overall_noise, 0.0),
        smoothness=largest_curvature(loss, params, first, weights, key),
    )


def _mini_batch_gradients(loss: Loss, params: PyTree, batches: PyTree) -> tuple[PyTree, Array]:
    """Mean of each cluster's gradients, leaves ``[N, ...]``, and their variance ``[N]``.

    One gradient at a time, by Welford's recursion: no differences of large numbers.
    """
    groups = jax.tree.leaves(batches)[0].shape[0]

    def of_cluster(batches: PyTree) -> tuple[PyTree, Array]:
        def add(carry: tuple[PyTree, Array], inputs: tuple[Array, PyTree]):
            mean, squares = carry
            count, batch = inputs
            step = jax.tree.map(jnp.subtract, jax.grad(loss)(params, batch), mean)
            mean = jax.tree.map(lambda m, s: m + s / count, mean, step)
            return (mean, squares + (1.0 - 1.0 / count) * _squared_norm(step)), None

        start = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
        counts = jnp.arange(1.0, groups + 1.0)
        (mean, squares), _ = jax.lax.scan(add, start, (counts, batches))
        return mean, squares / (groups - 1)

    return jax.lax.map(of_cluster, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batches))


def largest_curvature(
    loss: Loss, params: PyTree, batch: PyTree, weights: Float[Array, " N"], key: Key[Array, ""]
) -> Float[Array, ""]:
    """Largest absolute eigenvalue of the Hessian of ``F`` on a batch ``[N, B, ...]``, from below.

    A power iteration of fixed length: a product with the Hessian never scales the norm of a
    direction by more than the eigenvalue.
    """

    def product(direction: PyTree) -> PyTree:
        def add(total: PyTree, inputs: tuple[Array, PyTree]) -> tuple[PyTree, None]:
            weight, own = inputs
            # Layers with a backward pass of their own know no forward mode.
            _, pull = jax.vjp(lambda at: jax.grad(loss)(at, own), params)
            return jax.tree.map(lambda t, c: t + weight * c, total, *pull(direction)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (weights, batch))[0]

    def iterate(direction: PyTree, _) -> tuple[PyTree, Array]:
        return _normalised(product(direction))

    start, _ = _normalised(optax.tree.random_like(key, params))
    return jax.lax.scan(iterate, start, None, length=_POWER_ITERATIONS)[1][-1]


def _normalised(tree: PyTree) -> tuple[PyTree, Array]:
    """The tree over its norm, and the norm; zeros stay zeros."""
    norm = jnp.sqrt(_squared_norm(tree))
    return jax.tree.map(lambda leaf: leaf / jnp.where(norm > 0.0, norm, 1.0), tree), norm


def _squared_norm(tree: PyTree) -> Array:
    return jnp.asarray(optax.tree.vdot(tree, tree))
