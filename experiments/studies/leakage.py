"""Tokens that activations give away, by depth of the cut and noise.

    python -m experiments.studies.leakage --config=clinc150:plain --noise=0,0.3,1,3 \
        --config.model.pretrained=runs/plain/model

A curious party sees the activations between two blocks: a device those that reach it, the edge
server those behind the last block. It knows the tokens of some texts, here the validation set, and
fits a linear probe to their activations: linear discriminant analysis, position by position. The
table has the share of the tokens of test texts that the probe names, by the number of blocks before
the activations. The last row is the most frequent token. Tokens of every text, such as [CLS], are
not counted. Noise is that of ``training.activation_noise``, at every depth. Without
``model.pretrained`` the weights are fresh ones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Key

from collapipe_jax.cli.options import make_parser, read_numbers, run_training
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.federated.pipeline_learner import with_noise
from collapipe_jax.learning.models.block import encoder_block
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel
from collapipe_jax.learning.tasks.task import in_batches
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.training.ongoing_run import initial_params

_KINDS = ("classification", "tagging", "translation")
"""Tasks whose encoder reads a token at every position, and which have a test set."""
_SHRINKAGE = 1e-3
_WIDTH = 100


class Observed(NamedTuple):
    """What a party sees at every depth, and the tokens behind it."""

    activations: np.ndarray  # ``[L + 1, positions, h]``, before the first block and after each
    tokens: np.ndarray  # ``[positions]``


def main(argv: Sequence[str]) -> None:
    """Observe, probe, and print the table."""
    parser = make_parser(
        __doc__,
        "config",
        noise=("0", "standard deviations of the noise, with commas"),
        texts=(2000, "texts of either set at most"),
        out=("", "file for the shares"),
    )
    given, overrides = parser.parse_known_args(argv)
    levels = read_numbers("--noise", given.noise)
    config = read_config(given.config, parse_overrides(overrides))
    if config.task.kind not in _KINDS:
        remedy = f"Choose among {', '.join(_KINDS)}"
        raise InputError("task.kind", config.task.kind, "its tokens are not one a position", remedy)
    experiment = build_experiment(config)
    task, noise_key = experiment.task, jax.random.key(config.seed)
    model, params = task.model, initial_params(experiment)
    known, hidden = (
        observe(model, params, jax.tree.map(lambda leaf: leaf[: given.texts], texts))
        for texts in (task.data.validation.arrays, task.data.test.arrays)
    )
    shares = {
        str(depth): [recovered_share(known, hidden, depth, level, noise_key) for level in levels]
        for depth in range(model.sizes.encoder_blocks + 1)
    }
    guess = float(np.mean(hidden.tokens == np.bincount(known.tokens).argmax()))
    shares["none"] = [guess] * len(levels)
    if given.out:
        found = {"tokens": len(hidden.tokens), "noise": levels, "shares": shares}
        write_json(Path(given.out), found)
    rows = [[name, *(f"{100 * share:.1f}" for share in own)] for name, own in shares.items()]
    headings = ("blocks before", *(f"noise {level:g}" for level in levels))
    title = f"Tokens named, % of {len(hidden.tokens)}"
    console_for_tables(_WIDTH).print(make_table(headings, rows, title=title))


def observe(model: SplitModel, params: Params, texts: Batch) -> Observed:
    """Activations of texts at every depth, without dropout."""

    @jax.jit
    def run(batch: Batch) -> tuple[jax.Array, jax.Array]:
        x, mask = model.embed(params["embedding"], batch, None)
        seen = [x]
        for layer in range(model.sizes.encoder_blocks):
            block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["encoder"])
            seen.append(encoder_block(block, model.sizes, seen[-1], mask))
        return jnp.stack(seen, axis=1), mask

    tokens = np.asarray(jax.tree.leaves(texts)[0])
    activations, real = in_batches(run, texts)
    common = [token for token in np.unique(tokens) if np.all(np.any(tokens == token, axis=1))]
    counted = real.astype(bool) & ~np.isin(tokens, common)
    return Observed(np.moveaxis(activations, 1, 0)[:, counted].astype(np.float32), tokens[counted])


def recovered_share(
    known: Observed, hidden: Observed, depth: int, noise: float, key: Key[Array, ""]
) -> float:
    """Share of the hidden tokens that a probe of the known ones names.

    Args:
      known: what the probe is fitted to.
      hidden: what it reads.
      depth: number of blocks before the activations.
      noise: as ``training.activation_noise``.
      key: draws the noise.
    """

    def noisy(observed: Observed, key: Array) -> np.ndarray:
        x = jnp.asarray(observed.activations[depth], jnp.float32)
        return np.asarray(with_noise(x[:, None], jax.random.split(key, len(x)), noise)[:, 0])

    first, second = jax.random.split(key)
    probe = fit_probe(noisy(known, first), known.tokens)
    return float(np.mean(probe(noisy(hidden, second)) == hidden.tokens))


def fit_probe(x: np.ndarray, tokens: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Linear discriminant analysis: tokens as Gaussian classes of one covariance.

    A class may have a single example, unlike in scikit-learn, which estimates a covariance of each.

    Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, (4.10).

    Args:
      x: activations ``[n, h]``.
      tokens: theirs, ``[n]``.

    Returns:
      The most probable token of each of other activations.
    """
    classes, index, count = np.unique(tokens, return_inverse=True, return_counts=True)
    means = np.zeros((len(classes), x.shape[1]))
    np.add.at(means, index, x)
    means /= count[:, None]
    spread = x - means[index]
    covariance = spread.T @ spread / len(x)
    size = np.trace(covariance) / len(covariance)
    weights = np.linalg.solve(covariance + _SHRINKAGE * size * np.eye(len(covariance)), means.T)
    bias = np.log(count / len(x)) - 0.5 * np.sum(means * weights.T, axis=1)
    return lambda others: classes[np.argmax(others @ weights + bias, axis=1)]


if __name__ == "__main__":
    raise SystemExit(run_training(main))
