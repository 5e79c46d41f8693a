"""Prices of models of the published kinds against what XLA compiles for them."""

import jax.numpy as jnp
import pytest

from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
from collapipe_jax.learning.models.causal_lm import CausalBatch, CausalLM
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.config.files import read_values
from collapipe_jax.runs.config.system import build_system_params
from experiments.benchmarks import prices
from experiments.benchmarks.pipeline import Shape

LENGTH, VOCABULARY, LABELS = 64, 500, 7
SHAPE = Shape(stages=1, batch=8, micro_batches=4, sequence=LENGTH)
SIZES = {
    "model.width": 256,
    "model.heads": 4,
    "model.encoder_blocks": 6,
    "task.vocabulary_size": VOCABULARY,
    "task.source_length": LENGTH,
    "training.batch": SHAPE.batch,
    "training.micro_batch_choices": (SHAPE.micro_batches,),
}
BERT = {"model.feed_forward_width": 1024, "model.dropout_rate": 0.1, "task.labels": LABELS}
LLAMA = {
    "model.feed_forward_width": 680,
    "model.key_value_heads": 2,
    "model.adapter_rank": 8,
    "model.rematerialise": True,
}


def work_and_model(kind):
    """Prices and model of a BERT that is trained whole, or of a Llama with adapters."""
    config, _ = read_values(kind, SIZES | (BERT if kind == "classification" else LLAMA))
    sizes, ids = find_task(kind).make_sizes(config), jnp.ones((2, LENGTH + 1), jnp.int32)
    if kind == "classification":
        model = BertWithHead(sizes=sizes, labels=LABELS, pools=True)
        batch = LabelledBatch(ids[:, 1:], jnp.ones(2, jnp.int32))
    else:
        model, batch = CausalLM(sizes=sizes), CausalBatch(ids)
    return build_system_params(config).workload, model, batch


@pytest.mark.parametrize(
    "kind", [pytest.param("classification", marks=pytest.mark.slow), "causal_lm"]
)
def test_prices_are_those_of_compiled_programs(kind):
    """FLOPs of blocks and decoder within 5 %, memory of a device alone within 15 %."""
    work, model, batch = work_and_model(kind)
    lines = {line.name: line for line in prices.flop_lines(work, model, batch)}
    embedding = lines.pop("embedding, both passes")
    assert len(lines) == 3
    for line in lines.values():
        assert line.compiled == pytest.approx(line.price, rel=0.05), line
    # No matrix product is there, and the elementwise work is small.
    assert max(embedding[1:]) < 0.01 * lines["block, both passes"].price
    alone, grown, mesh = prices.memory_lines(work, model.sizes, SHAPE)
    assert alone.compiled == pytest.approx(alone.price, rel=0.15)
    assert grown.compiled == pytest.approx(grown.price, rel=0.15)
    # The mesh has the mini-batch, the weights of the loss and the gradient whole.
    whole = 3 * 4 * SHAPE.batch * LENGTH * model.sizes.width
    assert mesh.compiled == pytest.approx(alone.price + whole, rel=0.15)
