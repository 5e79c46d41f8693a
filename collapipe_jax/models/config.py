"""Sizes of a Transformer, and the tokens with a meaning of their own."""

import dataclasses

from collapipe_jax.errors import InputError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes that fix the shapes of the model; hashable, hence static under jit.

    Attributes:
      vocabulary_size: Entries of the vocabulary, special tokens included.
      width: `h`, size of an activation; even, and a multiple of `heads`.
      heads: Attention heads.
      feed_forward_width: Inner size of the feed-forward layer, usually `4 h`.
      encoder_blocks: `L`.
      decoder_blocks: Blocks of the decoder.
      source_length: Tokens of a source sentence, padding included.
      target_length: Tokens of a target sentence, end included and start not.
      dropout_rate: Probability in [0, 1) that an activation is dropped.
      label_smoothing: Share in [0, 1) of the target's mass spread over the vocabulary.
      rematerialise: Recompute a block's activations in the backward pass.

    Raises:
      InputError: On a size below 1, an odd width, heads that do not divide the
        width, a vocabulary without room for the special tokens, or a share outside [0, 1).
    """

    vocabulary_size: int
    width: int
    heads: int
    feed_forward_width: int
    encoder_blocks: int
    decoder_blocks: int
    source_length: int
    target_length: int
    dropout_rate: float = 0.0
    label_smoothing: float = 0.0
    rematerialise: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and not (type(value) is int and value >= 1):
                _reject(field.name, value, "is no positive integer", "Give at least 1")
            if field.type is float and not 0.0 <= value < 1.0:
                _reject(field.name, value, "is outside [0, 1)", "Give a share below 1")
        if self.vocabulary_size <= UNK_ID:
            _reject(
                "vocabulary_size",
                self.vocabulary_size,
                "leaves no room for the special tokens",
                "Give at least 4",
            )
        if self.width % 2:
            _reject("width", self.width, "is odd", "Sinusoidal positions need an even width")
        if self.width % self.heads:
            _reject(
                "heads",
                self.heads,
                f"does not divide width {self.width}",
                "Choose a divisor of model.width",
            )


def _reject(field: str, value: object, problem: str, remedy: str) -> None:
    raise InputError(f"model.{field}", value, problem, remedy)
