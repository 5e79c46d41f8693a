"""Adapters train on one base: by any way of learning, and in the memory of one."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.drawn_parameters import drawn
from support.leaves_close import assert_close

from collapipe_jax.core.compilation import QUICK_OPTIONS
from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.models.adapters import add_adapters, join, split
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
from collapipe_jax.learning.models.config import AdapterConfig, BertConfig
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.pipeline.execution import Execution
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh

CLUSTERS, BATCH, LENGTH, RATE = 3, 4, 6, 0.1
SIZES = BertConfig(
    vocabulary_size=20,
    positions=LENGTH,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=4,
    initial_deviation=0.3,
    adapters=AdapterConfig(rank=2, alpha=4.0, targets=("query", "value", "outer")),
)
# So wide that all but the weights is small.
WIDE = dataclasses.replace(SIZES, width=64, feed_forward_width=1024, encoder_blocks=2)
MODEL = BertWithHead(sizes=SIZES, labels=3, pools=True)
ADAM = make_optimizer("adam", RATE)
SGD = make_optimizer("sgd", RATE)
AVERAGE = make_optimizer("sgd", 1.0)
WEIGHTS = jnp.array([0.5, 0.2, 0.3])
KEY = jax.random.key(9)
PIPELINES = PipelineOutcome(
    micro_batches=jnp.full(CLUSTERS, 2),
    loss_probability=jnp.zeros(CLUSTERS),
    participates=jnp.array([True, False, True]),
    segments=jnp.array([[3, 1], [0, 0], [2, 2]]),
)
CLIENTS = ClientsOutcome(jnp.array([[BATCH], [0], [BATCH]]), jnp.zeros((CLUSTERS, 1)))


def pipelines(model=MODEL, local=SGD, **options):
    optimizers = Optimizers(client=local, decoder=local, server=AVERAGE)
    return PipelineLearner(cluster_weight=WEIGHTS, model=model, optimizers=optimizers, **options)


def clients(model=MODEL, local=SGD):
    optimizers = Optimizers(client=local, decoder=local, server=AVERAGE)
    return DataParallelLearner(
        cluster_weight=WEIGHTS, model=model, optimizers=optimizers, devices=1
    )


def params_of(model, adapted=True):
    """Parameters whose adapters do something."""
    adapters = model.sizes.adapters if adapted else None
    return drawn(lambda key: add_adapters(key, model.init(key), adapters))


def make_batches(steps=1, batch=BATCH):
    rng = np.random.default_rng(3)
    token_ids = rng.integers(4, 20, (steps, CLUSTERS, batch, LENGTH))
    labels = rng.integers(0, 3, (steps, CLUSTERS, batch))
    return LabelledBatch(*(jnp.asarray(part, jnp.int32) for part in (token_ids, labels)))


@pytest.fixture(scope="module")
def by_hand():
    """Trained parameters after a step of plain SGD in clusters 0 and 2, and their mean."""
    trained, base = split(params_of(MODEL))
    shares = np.array([0.5, 0.0, 0.3], np.float32) / 0.8

    @jax.jit
    def gradients(trained):
        def loss(trained, batch):
            losses, count = example_losses(MODEL, join(trained, base), batch)
            return losses.sum() / count.sum()

        batches = jax.tree.map(lambda leaf: leaf[0], make_batches())
        return jax.vmap(jax.grad(loss), (None, 0))(trained, batches)

    found = jax.device_get((trained, gradients(trained)))
    return jax.tree.map(lambda leaf, each: leaf - RATE * np.tensordot(shares, each, 1), *found)


@pytest.mark.parametrize(
    "execution",
    [
        Execution(),
        pytest.param(Execution("vmapped", 2), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 2), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 2, schedule="1f1b"), marks=pytest.mark.slow),
    ],
)
def test_pipelines_step_adapters_and_head_alone(execution, by_hand):
    learner = pipelines(execution=execution)
    state = learner.init(params_of(MODEL))
    if execution.backend == "sharded":
        everywhere = NamedSharding(make_pipeline_mesh(CLUSTERS, 2), PartitionSpec())
        state = jax.device_put(state, everywhere)
    after, _ = learner.round(state, make_batches(), PIPELINES, KEY, 0)
    check_step(after, state, by_hand)


def test_clients_step_adapters_and_head_alone(by_hand):
    learner = clients()
    state = learner.init(params_of(MODEL))
    check_step(learner.round(state, make_batches(), CLIENTS, KEY, 0)[0], state, by_hand)


def test_a_frozen_a_stays_and_b_moves_as_it_does_beside_it(by_hand):
    """A step of plain SGD from the same point moves ``B`` alike, whether ``A`` moves or not."""
    adapters = dataclasses.replace(SIZES.adapters, freezes_a=True)
    model = dataclasses.replace(MODEL, sizes=dataclasses.replace(SIZES, adapters=adapters))
    learner = clients(model)
    state = learner.init(params_of(MODEL))
    after, _ = learner.round(state, make_batches(), CLIENTS, KEY, 0)
    expected, _ = split({**state.params, **by_hand, "embedding": {}}, adapters)
    trained, base = split(after.params, adapters)
    assert_close(trained, expected, 1e-5)
    assert_close(base, state.base, 0.0)


@pytest.mark.slow
def test_pipelines_and_clients_step_alike_on_a_base_in_16_bits():
    adapters = dataclasses.replace(SIZES.adapters, base_dtype="bfloat16")
    model = dataclasses.replace(MODEL, sizes=dataclasses.replace(SIZES, adapters=adapters))
    after = []
    for learner, outcome in (
        (pipelines(model, execution=Execution("vmapped", 2, schedule="1f1b")), PIPELINES),
        (clients(model), CLIENTS),
    ):
        state = learner.init(params_of(MODEL))
        after.append(learner.round(state, make_batches(), outcome, KEY, 0)[0].trained)
    assert_close(*after, 1e-5)


def check_step(after, before, expected):
    trained, base = split(after.params)
    assert_close(trained, expected, 1e-5)
    assert_close(base, before.base, 0.0)
    assert jax.tree.structure(base) == jax.tree.structure(before.base)


@pytest.mark.parametrize(
    ("make", "outcome"),
    [pytest.param(pipelines, PIPELINES, marks=pytest.mark.slow), (clients, CLIENTS)],
)
def test_the_base_stands_once_in_the_memory_of_a_round(make, outcome):
    """No array of the program is larger than the base's; without adapters it has copies."""
    adapted, base = program(make, outcome, adapted=True)
    widest = max(leaf.size for leaf in jax.tree.leaves(base))
    base_bytes = sum(4 * leaf.size for leaf in jax.tree.leaves(base))
    assert largest_array(adapted) == widest
    assert held_bytes(adapted) < 5.0 * base_bytes
    whole, _ = program(make, outcome, adapted=False)
    assert largest_array(whole) == CLUSTERS * widest
    assert held_bytes(whole) > 10.0 * base_bytes


def program(make, outcome, adapted):
    """A compiled round of a wide model, and the shapes of its base."""
    learner = make(dataclasses.replace(MODEL, sizes=WIDE), ADAM)
    state = jax.eval_shape(lambda: learner.init(params_of(learner.model, adapted)))
    step = jax.jit(type(learner).round.__wrapped__, donate_argnums=1)
    lowered = step.lower(learner, state, make_batches(batch=1), outcome, KEY, 0)
    return lowered.compile(compiler_options=QUICK_OPTIONS), state.base


def largest_array(compiled):
    """Entries of the largest array of numbers that a program names."""
    shapes = set(re.findall(r"f32\[([\d,]+)\]", compiled.as_text()))
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def held_bytes(compiled):
    """Bytes of arguments, temporaries, and outputs that take the place of no argument."""
    sizes = compiled.memory_analysis()
    held = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + held
