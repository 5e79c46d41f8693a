"""Rounds of learning of three clusters or their clients, with the tiny Transformer."""

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.learning.federated.data_parallel_learner import ClientsOutcome
from collapipe_jax.learning.federated.optimizers import Optimizers, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineOutcome
from collapipe_jax.learning.models.transformer import TranslationBatch, Translator
from support.tiny_transformer import CONFIG

MODEL = Translator(CONFIG)
STEPS, CLUSTERS, BATCH, KEY = 2, 3, 4, jax.random.key(9)
UNEVEN = jnp.array([[3, 1], [0, 4], [2, 2]], jnp.int32)
"""Samples of two clients of every cluster, one of whom is left out."""


def learner_fields(server):
    """Fields of a learner, by the name of the optimiser of its server."""
    step = make_optimizer("momentum", 0.1)
    own = Optimizers(client=step, decoder=step, server=make_optimizer(server, 1.0))
    return {"cluster_weight": jnp.array([0.5, 0.2, 0.3]), "model": MODEL, "optimizers": own}


def make_batches(seed):
    rng = np.random.default_rng(seed)

    def ids(length):
        return jnp.array(rng.integers(4, 12, (STEPS, CLUSTERS, BATCH, length)), jnp.int32)

    return TranslationBatch(ids(5), ids(5).at[..., 0].set(1))


def outcome(present=(True,) * CLUSTERS):
    lossless = jnp.zeros(CLUSTERS)
    return PipelineOutcome(jnp.full(CLUSTERS, 2), lossless, jnp.array(present), None)


def clients_outcome(blocks=None, samples=UNEVEN):
    return ClientsOutcome(samples, jnp.zeros((CLUSTERS, 2)), blocks)
