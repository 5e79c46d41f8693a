"""Sizes of the models, and the numbers of the special tokens."""

import dataclasses
from collections.abc import Mapping
from numbers import Real
from typing import Any

from collapipe_jax.errors import InputError

Ids = Any
"""Numbers of tokens or labels: an array of NumPy on the host, of JAX in a step."""

PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)

DTYPES = ("float32", "bfloat16")
"""Types of products."""
ATTENTIONS = ("einsum", "cudnn")
"""Implementations of attention."""
_KNOWN = {
    "norm": ("pre", "post"),
    "activation": ("gelu", "gelu_tanh", "relu", "silu"),
    "compute_dtype": DTYPES,
    "attention": ATTENTIONS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of the stack of blocks; hashable, hence static under jit.

    Raises:
      InputError: on a size below 1, heads that do not divide the width, a share outside
        [0, 1), or an unknown name.
    """

    width: int  # ``h``, size of an activation; a multiple of ``heads``
    heads: int  # attention heads
    feed_forward_width: int  # inner size of the feed-forward layer, usually ``4 h``
    encoder_blocks: int  # ``L``
    # "pre" norms the input of a layer and leaves the stack's output unnormed; "post" norms the sum
    # of a layer and its residual, as BERT does
    norm: str = "pre"
    norm_epsilon: float = 1e-6  # added to a variance
    # "gelu" (exact), "gelu_tanh" (its usual approximation), "relu" or "silu"
    activation: str = "gelu_tanh"
    dropout_rate: float = 0.0  # probability in [0, 1) that an activation is dropped
    # The same of an attention weight; -1 takes ``dropout_rate``
    attention_dropout_rate: float = -1.0
    # "einsum", or "cudnn" for cuDNN's fused kernel on a GPU, which keeps no attention weights
    attention: str = "einsum"
    rematerialise: bool = False  # recompute a block's activations in the backward pass
    # "float32", or "bfloat16" for matrix products of 16-bit numbers that are summed in 32;
    # parameters, norms, softmax and losses keep float32 either way
    compute_dtype: str = "float32"
    # Of fresh weights, a normal law cut at two of it; 0 takes ``1 / sqrt(inputs)``, LeCun's law
    initial_deviation: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and not (type(value) is int and value >= 1):
                _reject(field.name, value, "is no positive integer", "Give at least 1")
            if field.name == "attention_dropout_rate" and value == -1.0:
                continue
            if field.type is float and not (isinstance(value, Real) and 0.0 <= float(value) < 1.0):
                _reject(field.name, value, "is no number in [0, 1)", "Give a share below 1")
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                _reject(name, getattr(self, name), "is unknown", f"Choose among {', '.join(known)}")
        if self.heads_width % self.heads:
            problem = f"does not divide width {self.heads_width}"
            _reject("heads", self.heads, problem, "Choose a divisor of model.width")
        if self.attention == "cudnn":
            self._check_kernel()

    def _check_kernel(self) -> None:
        """Refuse sizes that cuDNN's kernel of attention does not take."""
        remedy = "Set model.attention to 'einsum', or change that"
        head_size = self.heads_width // self.heads
        for is_wrong, problem in (
            (self.attention_rate > 0.0, "drops no attention weights (attention_dropout_rate)"),
            (self.compute_dtype != "bfloat16", "computes in 16 bits (compute_dtype)"),
            (head_size % 8 != 0, "takes heads of a multiple of 8 (width, heads)"),
            (head_size > 128, "takes heads of at most 128 (width, heads)"),
        ):
            if is_wrong:
                _reject("attention", self.attention, problem, remedy)

    @property
    def heads_width(self) -> int:
        """Numbers of a token's query, of all heads together."""
        return self.width

    @property
    def attention_rate(self) -> float:
        """Probability that an attention weight is dropped."""
        return attention_rate(self.dropout_rate, self.attention_dropout_rate)

    @property
    def drops(self) -> bool:
        """Whether training needs random keys."""
        return max(self.dropout_rate, self.attention_rate) > 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """Sizes of an encoder-decoder for translation.

    Raises:
      InputError: as ``EncoderConfig``, and on an odd width, a vocabulary without room for the
        special tokens, or post-norm.
    """

    vocabulary_size: int  # special tokens included
    decoder_blocks: int
    source_length: int  # tokens, padding included
    target_length: int  # tokens, end included and start not
    label_smoothing: float = 0.0  # share of the target's mass spread over the vocabulary

    def __post_init__(self) -> None:
        if isinstance(self.width, int) and self.width % 2:
            _reject("width", self.width, "is odd", "Sinusoidal positions need an even width")
        super().__post_init__()
        if self.vocabulary_size <= UNK_ID:
            problem = "leaves no room for the special tokens"
            _reject("vocabulary_size", self.vocabulary_size, problem, "Give at least 4")
        if self.norm != "pre":
            _reject("norm", self.norm, "is not the decoder's", "Leave it at 'pre'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Sizes of BERT (Devlin et al. 1810.04805) with its published defaults."""

    vocabulary_size: int
    positions: int = 512  # longest text in tokens
    token_types: int = 2  # types of text in one sequence
    norm: str = "post"
    norm_epsilon: float = 1e-12
    activation: str = "gelu"
    initial_deviation: float = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalConfig(EncoderConfig):
    """Sizes of a decoder-only language model: Llama (Touvron et al. 2302.13971) or Qwen2.

    Raises:
      InputError: as ``EncoderConfig``, and on heads of keys and values that do not divide the
        heads, an odd size of a head, or post-norm.
    """

    vocabulary_size: int
    positions: int  # longest text in tokens
    # Heads of keys and values, each shared by ``heads / key_value_heads`` heads of queries
    # (Ainslie et al. 2305.13245)
    key_value_heads: int
    head_size: int  # ``d``, numbers of a head; even
    query_bias: bool = False  # whether queries, keys and values have biases, as in Qwen2
    # Rotary positions turn pair i of a head's d / 2 pairs by ``position * base^(-2 i / d)``
    rotary_base: int = 10_000
    activation: str = "silu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.key_value_heads:
            problem = f"does not divide the {self.heads} heads"
            remedy = "Choose a divisor of model.heads"
            _reject("key_value_heads", self.key_value_heads, problem, remedy)
        if self.head_size % 2:
            _reject("head_size", self.head_size, "is odd", "Rotary positions turn pairs of numbers")
        if self.norm != "pre":
            _reject("norm", self.norm, "is not the block's", "Leave it at 'pre'")

    @property
    def heads_width(self) -> int:
        """Numbers of a token's query, of all heads together."""
        return self.heads * self.head_size


def attention_rate(dropout_rate: float, attention_dropout_rate: float) -> float:
    """Probability that an attention weight is dropped; negative takes that of activations."""
    return dropout_rate if attention_dropout_rate < 0.0 else attention_dropout_rate


def encoder_sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the encoder in the section ``model`` of a configuration."""
    names = {field.name for field in dataclasses.fields(EncoderConfig)}
    return {name: value for name, value in model.items() if name in names}


def _reject(field: str, value: object, problem: str, remedy: str) -> None:
    """Refuse a size of the model."""
    raise InputError(f"model.{field}", value, problem, remedy)
