"""Rounds of learning of three clusters or their clients, with a tiny tagger."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.learning.federated.data_parallel_learner import ClientsOutcome
from collapipe_jax.learning.federated.optimizers import Optimizers, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineOutcome
from collapipe_jax.learning.models.bert import UNLABELLED, BertWithHead, LabelledBatch
from support.tiny_bert import SIZES

MODEL = BertWithHead(sizes=SIZES, labels=5, pools=False)
STEPS, CLUSTERS, BATCH, KEY = 2, 3, 4, jax.random.key(9)
WEIGHTS = jnp.array([0.5, 0.2, 0.3])
UNEVEN = jnp.array([[3, 1], [0, 4], [2, 2]], jnp.int32)
"""Samples of two clients of every cluster, one of whom is left out."""


@functools.cache
def start():
    """Parameters of the tagger before the first round."""
    return jax.jit(MODEL.init)(jax.random.key(0))


def learner_fields(server):
    """Fields of a learner, by the name of the optimiser of its server."""
    step = make_optimizer("momentum", 0.1)
    own = Optimizers(client=step, decoder=step, server=make_optimizer(server, 1.0))
    return {"cluster_weight": WEIGHTS, "model": MODEL, "optimizers": own}


def make_batches(seed, steps=STEPS, clusters=CLUSTERS, shortest=1):
    """Texts of `shortest` to 4 tokens, every one of them labelled."""
    rng = np.random.default_rng(seed)
    shape = (steps, clusters, BATCH)
    real = np.arange(4) < rng.integers(shortest, 5, (*shape, 1))
    token_ids = np.where(real, rng.integers(4, 12, (*shape, 4)), 0)
    labels = np.where(real, rng.integers(0, 5, (*shape, 4)), UNLABELLED)
    return LabelledBatch(token_ids.astype(np.int32), labels.astype(np.int32))


def outcome(present=(True,) * CLUSTERS):
    lossless = jnp.zeros(CLUSTERS)
    return PipelineOutcome(jnp.full(CLUSTERS, 2), lossless, jnp.array(present), None)


def clients_outcome(blocks=None, samples=UNEVEN):
    return ClientsOutcome(samples, jnp.zeros((CLUSTERS, 2)), blocks)
