"""Differential privacy: contributions of bounded norm, and Gaussian noise on their sum.

Two data sets are neighbours if one lacks all data of a unit, whose contributions are then zero, and
nothing else differs. A unit is a cluster or an example. Denominators are fixed numbers that no
data change, so a release moves by at most the clipping norm times the unit's share. Numbers of
samples, shares and decisions of the network are taken as public.

Source: Abadi et al. 1607.00133, McMahan et al. 1710.06963; proofs in docs/theory.md.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Key, PyTree, UInt32

from collapipe_jax.core.batch_axis import pick
from collapipe_jax.learning.federated.aggregation import aggregate
from collapipe_jax.learning.tasks.sampling import sample_round

UNITS = ("cluster", "example")
"""Whose data a run protects."""

_NOISE = 0x6E6F6973  # folded into a key; no other fold uses this number


@struct.dataclass(kw_only=True)
class ClusterPrivacy:
    """Noise of the edge server, which is trusted; numbers are array values.

    A round releases the aggregated step of the clients, and with one decoder at the server every
    step of this decoder besides.
    """

    noise_multiplier: Any  # ``z``, deviation of the noise over the sensitivity
    clip_norm: Any  # largest norm of a client's step in a round
    decoder_clip_norm: Any  # largest norm of a cluster's gradient by the decoder
    largest_share: Any  # ``max_n w_n``
    seed: Any  # words of the noise's seed, ``[2]``

    def step(
        self,
        start: PyTree[Float[Array, "..."]],
        copies: PyTree[Float[Array, "N ..."]],
        shares: Float[Array, " N"],
        key: Key[Array, ""],
    ) -> PyTree[Float[Array, "..."]]:
        """Aggregated step "before less mean" from ``start``; shares are not rescaled."""
        steps = jax.tree.map(lambda before, own: before[None] - own, start, copies)
        return self._released(steps, shares, self.clip_norm, key)

    def decoder_gradient(
        self,
        gradients: PyTree[Float[Array, "N ..."]],
        shares: Float[Array, " N"],
        key: Key[Array, ""],
    ) -> PyTree[Float[Array, "..."]]:
        """Mean gradient by the decoder from those of the clusters; shares are not rescaled."""
        return self._released(gradients, shares, self.decoder_clip_norm, key)

    def _released(self, values: PyTree, shares: Array, clip_norm: Any, key: Array) -> PyTree:
        mean = clipped_mean(values, shares, clip_norm)
        deviation = self.noise_multiplier * sensitivity(clip_norm, self.largest_share)
        return add_noise(mean, deviation, noise_key(key, self.seed))


@struct.dataclass(kw_only=True)
class ExamplePrivacy:
    """Noise of every client on every gradient (DP-SGD), against all that see what it sends."""

    noise_multiplier: Any  # ``z``, deviation of the noise over the sensitivity
    clip_norm: Any  # largest norm of an example's gradient
    seed: Any  # words of the noise's seed, ``[2]``
    examples_at_once: int = struct.field(pytree_node=False)  # gradients that a client holds

    def gradient(
        self,
        gradient_of: Callable[[Any], tuple[PyTree, PyTree]],
        examples: PyTree[Array],
        count: Array,
        key: Key[Array, ""],
    ) -> tuple[PyTree[Float[Array, "..."]], PyTree]:
        """Noisy mean of clipped gradients, and the sum of what comes with them.

        Args:
          gradient_of: gradient of an example, and numbers to add up, both zero for padding.
          examples: leaves ``[b, ...]``.
          count: of examples before the padding, which is public.
          key: of the client's step.
        """
        total, sums = clipped_sum(
            gradient_of, examples, self.clip_norm, self.examples_at_once, count
        )
        deviation = self.noise_multiplier * sensitivity(self.clip_norm, 1.0)
        noisy = add_noise(total, deviation, noise_key(key, self.seed))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), noisy), sums


def clip(tree: PyTree[Float[Array, "..."]], largest: Any) -> PyTree[Float[Array, "..."]]:
    """The tree, scaled down to at most this Euclidean norm over all leaves.

    Numbers that are not finite count as zero: no input breaks the bound.
    """
    tree = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), tree)
    norm = optax.tree.norm(tree)
    # A norm that overflows leaves nothing.
    factor = jnp.minimum(1.0, largest / jnp.where(norm > 0.0, norm, 1.0))
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)


def clipped_mean(
    values: PyTree[Float[Array, "N ..."]], shares: Float[Array, " N"], largest: Any
) -> PyTree[Float[Array, "..."]]:
    """``sum_n w_n clip(x_n)``, with shares ``w_n`` that are fixed: they need not sum to 1."""
    return aggregate(jax.vmap(clip, in_axes=(0, None))(values, largest), shares)


def clipped_sum(
    gradient_of: Callable[[Any], tuple[PyTree, PyTree]],
    examples: PyTree[Array],
    largest: Any,
    at_once: int,
    count: Array | int | None = None,
) -> tuple[PyTree[Float[Array, "..."]], PyTree]:
    """``sum_b clip(g_b)`` over examples, of which ``at_once`` have their gradients in memory.

    Blocks behind the first ``count`` examples, an array value, are not computed.
    """
    size = jax.tree.leaves(examples)[0].shape[0]
    at_once = min(at_once or size, size)
    blocks = -(-size // at_once)

    def cut(leaf: Array) -> Array:
        missing = [(0, blocks * at_once - size), *[(0, 0)] * (leaf.ndim - 1)]
        return jnp.pad(leaf, missing).reshape(blocks, at_once, *leaf.shape[1:])

    def clipped(example: Any) -> tuple[PyTree, PyTree]:
        gradient, numbers = gradient_of(example)
        return clip(gradient, largest), numbers

    cuts = jax.tree.map(cut, examples)

    def add(turn: Array, total: PyTree) -> PyTree:
        found = jax.vmap(clipped)(pick(cuts, turn))
        return jax.tree.map(lambda sum_, rows: sum_ + rows.sum(0), total, found)

    shapes = jax.eval_shape(clipped, jax.tree.map(lambda leaf: leaf[0], examples))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    turns = blocks if count is None else jnp.minimum(-(-count // at_once), blocks)
    return jax.lax.fori_loop(0, turns, add, nothing)


def sensitivity(clip_norm: Any, largest_share: Any) -> Any:
    """``C max_n w_n``: how far a unit's data move a mean with fixed denominators.

    Source: docs/theory.md (T26).
    """
    return clip_norm * largest_share


def add_noise(
    tree: PyTree[Float[Array, "..."]], deviation: Any, key: Key[Array, ""]
) -> PyTree[Float[Array, "..."]]:
    """The tree with independent normal noise of this deviation on every number."""
    noise = optax.tree.random_like(key, tree, jax.random.normal)
    return jax.tree.map(lambda leaf, own: leaf + (deviation * own).astype(leaf.dtype), tree, noise)


def noise_key(
    key: Key[Array, ""], seed: UInt32[Array, "2"] | UInt32[np.ndarray, "2"]
) -> Key[Array, ""]:
    """Key of the noise of one release, from that of its round or step."""
    words = jax.random.fold_in(jax.random.fold_in(key, _NOISE), seed[0])
    return jax.random.fold_in(words, seed[1])


def seed_words(seed: int) -> np.ndarray:
    """A seed from 0, below 2**64, as two words of 32 bits."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


EXTRA = "privacy"
"""Extra of the package that brings the accountant."""


class Account(NamedTuple):
    """What a run spends."""

    unit: str  # one of ``privacy.UNITS``
    noise_multiplier: float  # ``z``
    delta: float
    releases: np.ndarray  # after every round of the run, ``[rounds]``

    def epsilon(self, rounds: int) -> float:
        """Epsilon after this many rounds, 1 or more."""
        return epsilon_of(self.noise_multiplier, float(self.releases[rounds - 1]), self.delta)


def is_installed() -> bool:
    """Whether the accountant is there."""
    return importlib.util.find_spec("dp_accounting") is not None


def epsilon_of(noise_multiplier: float, releases: float, delta: float) -> float:
    """Epsilon of so many releases at ``delta``. Source: docs/theory.md (T27)."""
    import dp_accounting  # takes a second to load

    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


def noise_multiplier_of(epsilon: float, releases: float, delta: float) -> float:
    """Least noise multiplier with which so many releases spend at most ``epsilon``."""
    import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def cluster_releases(rounds: int, local_steps: int, *, one_decoder: bool) -> np.ndarray:
    """Releases to which every cluster contributes, after every round, ``[rounds]``.

    A round releases the aggregated step, and with one decoder at the server H steps of it.
    """
    each = 1 + local_steps * one_decoder
    return each * np.arange(1.0, rounds + 1.0)


def example_releases(
    seed: int, cluster_indices: Sequence[np.ndarray], rounds: int, local_steps: int, batch: int
) -> np.ndarray:
    """Releases of the example that enters most of them, after every round, ``[rounds]``.

    Samples come in shuffled passes and no draw is independent of another, so nothing is amplified
    by sampling. An example enters once a pass; where a batch straddles two, perhaps twice at once.
    Arguments as of ``sample_round``.
    """
    entered = np.zeros(1 + max(int(indices.max()) for indices in cluster_indices))

    def most() -> Iterator[float]:
        largest = 0.0
        for index in range(rounds):
            for rows in sample_round(seed, cluster_indices, index, local_steps, batch):
                names, counts = np.unique(rows, return_counts=True)
                entered[names] += counts.astype(float) ** 2
                largest = max(largest, entered[names].max())
            yield largest

    return np.fromiter(most(), float, rounds)
