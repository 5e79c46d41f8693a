"""Sizes of a BERT of two blocks, for tests of ways of learning."""

from collapipe_jax.learning.models.config import BertConfig

SIZES = BertConfig(
    vocabulary_size=12,
    positions=4,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=2,
    activation="relu",
    initial_deviation=0.3,
)
