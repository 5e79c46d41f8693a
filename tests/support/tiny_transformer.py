"""A Transformer that compiles in a moment."""

from collapipe_jax.learning.models.config import TransformerConfig

CONFIG = TransformerConfig(
    vocabulary_size=12,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=2,
    decoder_blocks=1,
    source_length=5,
    target_length=4,
    label_smoothing=0.1,
)
