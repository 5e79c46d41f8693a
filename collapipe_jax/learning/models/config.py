"""Sizes of the models, and the numbers of the special tokens."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from collapipe_jax.core.errors import InputError, collect
from collapipe_jax.core.quantity import MOST_BLOCKS

Ids = Any
"""Numbers of tokens or labels: an array of NumPy on the host, of JAX in a step."""

PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)

LARGEST = 10**7  # size of a model, far beyond any; a damaged file may have more

DTYPES = ("float32", "bfloat16")
"""Types of products."""
ATTENTIONS = ("einsum", "cudnn")
"""Implementations of attention."""
LINEAR_LAYERS = ("query", "key", "value", "out", "inner", "outer")
"""Names of the linear maps in a block of an encoder."""
GATED_LAYERS = (*LINEAR_LAYERS, "gate")
"""Names of those in a decoder-only block."""
ALL_LINEAR = "all"
"""Name of all of them together."""
_OPTIONAL = ("ngram_buckets",)  # sizes that may be 0
NGRAM_SIZES = ("ngram_buckets", "word_ngrams", "ngram_combiner")
"""Sizes of BERT that tell its n-grams."""
COMBINERS = ("mean", "sqrtn")
"""What the sum of a word's n-grams is divided by: their number, or its square root."""
MOST_WORDS = 3
"""Longest n-gram of words."""
_KNOWN = {
    "norm": ("pre", "post"),
    "activation": ("gelu", "gelu_tanh", "relu", "silu"),
    "compute_dtype": DTYPES,
    "attention": ATTENTIONS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Low-rank adapters of the blocks' linear maps (LoRA, Hu et al. 2106.09685)."""

    rank: int  # ``r``, columns of ``A`` and rows of ``B``
    alpha: float  # over the rank it is the scale of ``A B``
    targets: tuple[str, ...]  # of the ``linear_layers`` of a block
    # Whether ``A`` stays as drawn, the same everywhere. Then the mean of the clusters' ``A B`` is
    # ``A`` times the mean of their ``B`` (FFA-LoRA, Sun et al. 2403.12313).
    freezes_a: bool = False
    base_dtype: str = "float32"  # in which the frozen weights of blocks are held

    @property
    def scale(self) -> float:
        """Factor of ``A B``."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of the stack of blocks; hashable, hence static under jit.

    ``linear_layers`` are the names of a block's linear maps.

    Raises:
      InputError: on a size below 1, heads that do not divide the width, a share outside
        [0, 1), or an unknown name.
    """

    linear_layers: ClassVar[tuple[str, ...]] = LINEAR_LAYERS
    # Parts of a block; see ``block.py``
    is_causal: ClassVar[bool] = False  # whether no token reads a later one
    divides_by_rms: ClassVar[bool] = False  # instead of a layer norm
    gated: ClassVar[bool] = False
    bias: ClassVar[bool] = True  # of all maps but queries, keys and values
    query_bias: ClassVar[bool] = True
    query_key_norm: ClassVar[bool] = False
    rotary_base: ClassVar[int] = 0  # 0: positions are not rotary
    rotary_scaling: ClassVar["RotaryScaling | None"] = None

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
    adapters: AdapterConfig | None = None  # those of the blocks, or none: everything is trained

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _OPTIONAL else 1
            if field.type is int and not (type(value) is int and value >= least):
                problem = "is no integer from 0 on" if least == 0 else "is no positive integer"
                _reject(field.name, value, problem, f"Give at least {least}")
            if field.type is bool and type(value) is not bool:
                _reject(field.name, value, "is neither true nor false", "Give one of them")
            most = MOST_BLOCKS if field.name.endswith("_blocks") else LARGEST
            if field.type is int and value > most:
                _reject(field.name, value, "is beyond any model", f"Give at most {most}")
            if field.name == "attention_dropout_rate" and value == -1.0:
                continue
            if field.type is float and not (isinstance(value, float | int) and 0.0 <= value < 1.0):
                _reject(field.name, value, "is no number in [0, 1)", "Give a share below 1")
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                _reject(name, getattr(self, name), "is unknown", f"Choose among {', '.join(known)}")
        if self.heads_width % self.heads:
            problem = f"does not divide width {self.heads_width}"
            _reject("heads", self.heads, problem, "Choose a divisor of model.width")
        targets = self.adapters.targets if self.adapters else ()
        if missing := sorted(set(targets) - set(self.linear_layers)):
            remedy = f"They have {', '.join(self.linear_layers)}"
            _reject("adapter_targets", targets, f"the blocks have no map {missing[0]}", remedy)
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
    def head_width(self) -> int:
        """``d``, numbers of a head."""
        return self.heads_width // self.heads

    @property
    def groups(self) -> int:
        """``g``, heads of keys and values."""
        return self.heads

    @property
    def table_deviation(self) -> float:
        """Deviation of a fresh table, for which LeCun's law takes the width as inputs."""
        return self.initial_deviation or self.width**-0.5

    @property
    def on_file(self) -> Self:
        """The sizes with the deviation of fresh weights that layouts need; LeCun's law has none."""
        return dataclasses.replace(self, initial_deviation=self.table_deviation)

    @property
    def attention_rate(self) -> float:
        """Probability that an attention weight is dropped."""
        return _attention_rate(self.dropout_rate, self.attention_dropout_rate)

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
    # Rows of the table of hashed character n-grams (Bojanowski et al. 1607.04606); 0: no table
    ngram_buckets: int = 0
    # Longest n-gram of words in this table; 1: characters alone
    word_ngrams: int = 1
    ngram_combiner: str = "mean"  # one of ``COMBINERS``
    norm: str = "post"
    norm_epsilon: float = 1e-12
    activation: str = "gelu"
    initial_deviation: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if (combiner := self.ngram_combiner) not in COMBINERS:
            remedy = f"Choose among {', '.join(COMBINERS)}"
            _reject("ngram_combiner", combiner, "is unknown", remedy)
        if not 1 <= self.word_ngrams <= MOST_WORDS:
            remedy = f"Give 1 to {MOST_WORDS}"
            _reject("word_ngrams", self.word_ngrams, "is no length of n-grams of words", remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Slower rotations, with which Llama 3 reads longer texts than it was first trained on.

    Pairs that turn more than ``high_frequency_factor`` times over the former length keep their
    rate. Those that turn less than ``low_frequency_factor`` times turn ``factor`` times as slowly.
    Rates between them are mixed.

    Raises:
      InputError: on a factor below 1, or frequencies in another order.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int  # the former length

    def __post_init__(self) -> None:
        for name in ("factor", "low_frequency_factor", "original_positions"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 1.0 <= value <= LARGEST):
                _reject(name, value, "is no number from 1 on", "Take it from the published model")
        if not self.low_frequency_factor < self.high_frequency_factor <= LARGEST:
            problem = f"is not above the low one, {self.low_frequency_factor}"
            remedy = "Take both from the published model"
            _reject("high_frequency_factor", self.high_frequency_factor, problem, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalConfig(EncoderConfig):
    """Sizes of a decoder-only language model: Llama (Touvron et al. 2302.13971), Qwen2 or Qwen3.

    Raises:
      InputError: as ``EncoderConfig``, and on heads of keys and values that do not divide the
        heads, an odd size of a head, or post-norm.
    """

    linear_layers: ClassVar[tuple[str, ...]] = GATED_LAYERS
    is_causal: ClassVar[bool] = True
    divides_by_rms: ClassVar[bool] = True
    gated: ClassVar[bool] = True
    bias: ClassVar[bool] = False

    vocabulary_size: int
    positions: int  # longest text in tokens
    # Heads of keys and values, each shared by ``heads / key_value_heads`` heads of queries
    # (Ainslie et al. 2305.13245)
    key_value_heads: int
    head_size: int  # ``d``, numbers of a head; even
    query_bias: bool = False  # whether queries, keys and values have biases, as in Qwen2
    query_key_norm: bool = False  # whether each head's queries and keys are normed, as in Qwen3
    # Rotary positions turn pair i of a head's d / 2 pairs by ``position * base^(-2 i / d)``
    rotary_base: int = 10_000
    rotary_scaling: RotaryScaling | None = None  # as in Llama 3.1 and later
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

    @property
    def groups(self) -> int:
        """``g``, heads of keys and values."""
        return self.key_value_heads


def _attention_rate(dropout_rate: float, attention_dropout_rate: float) -> float:
    """Probability that an attention weight is dropped; negative takes that of activations."""
    return dropout_rate if attention_dropout_rate < 0.0 else attention_dropout_rate


def encoder_sizes(
    model: Mapping[str, Any], layers: tuple[str, ...] = LINEAR_LAYERS
) -> dict[str, Any]:
    """The sizes of the encoder in the section ``model`` of a configuration.

    Its blocks have linear maps of the names ``layers``.
    """
    names = {field.name for field in dataclasses.fields(EncoderConfig)}
    sizes = {name: value for name, value in model.items() if name in names}
    return sizes | {"adapters": _adapter_sizes(model, layers)}


def _adapter_sizes(model: Mapping[str, Any], layers: tuple[str, ...]) -> AdapterConfig | None:
    if not model["adapter_rank"]:
        return None
    targets = tuple(model["adapter_targets"])
    return AdapterConfig(
        rank=model["adapter_rank"],
        alpha=model["adapter_alpha"],
        freezes_a=model["adapter_freezes_a"],
        base_dtype=model["base_dtype"],
        targets=layers if ALL_LINEAR in targets else targets,
    )


def _reject(field: str, value: object, problem: str, remedy: str) -> None:
    """Refuse a size of the model."""
    raise InputError(f"model.{field}", value, problem, remedy)


_Sizes = TypeVar("_Sizes", BertConfig, CausalConfig)

PUBLISHED_SIZES = ("width", "heads", "feed_forward_width", "encoder_blocks", "vocabulary_size")
"""Sizes of every kind of model that training takes from a published one as they are."""
_CHOSEN = ("dropout_rate", "attention_dropout_rate", "attention", "rematerialise", "compute_dtype")
_CHOSEN += ("adapters",)
KEYS_OF_TASK = {
    "model.vocabulary_size": "task.vocabulary_size",
    "model.positions": "task.source_length",
}
"""Keys of a configuration that sizes of such a model are to blame on; see ``rename_error_keys``."""


def _refuse_other_sizes(directory: str, wanted: Mapping[str, Any], found: Any) -> None:
    """Refuse sizes by name other than on file, and more positions; all that are wrong at once."""
    with collect() as step:
        for name, ours in wanted.items():
            theirs = getattr(found, name)
            with step():
                if name == "positions" and theirs < ours:
                    problem = f"the model in {directory} has {theirs} positions"
                    remedy = f"Lower it to {theirs} or less"
                    raise InputError("task.source_length", ours, problem, remedy)
                if name != "positions" and theirs != ours:
                    key = f"{'task' if name == 'vocabulary_size' else 'model'}.{name}"
                    problem = f"the model in {directory} has {theirs}"
                    raise InputError(key, ours, problem, f"Set it to {theirs}")


def check_pretrained_sizes(
    config: Mapping[str, Any],
    make_sizes: Callable[[Mapping[str, Any]], _Sizes],
    found: _Sizes,
    more: Sequence[str] = (),
) -> None:
    """Refuse sizes of a configuration other than those ``found`` in its pretrained model."""
    task, directory = config["task"], config["model"]["pretrained"]
    # Stated sizes first: others may follow from a wrong one, or not fit it. 0 states nothing.
    stated = {name: config["model"].get(name) for name in (*PUBLISHED_SIZES, *more)}
    stated |= {"vocabulary_size": task["vocabulary_size"], "positions": task["source_length"]}
    stated = {name: size for name, size in stated.items() if size or size is False}
    _refuse_other_sizes(directory, stated, found)
    pretrained_sizes(directory, make_sizes(config), found, more)


def pretrained_sizes(
    directory: str, wanted: _Sizes, found: _Sizes, more: Sequence[str] = ()
) -> _Sizes:
    """Sizes on file; training may choose dropout, precision, kernel, recomputation, adapters.

    Raises:
      InputError: sizes, ``more`` fields among them, other than in the configuration, by which the
        network prices the model; or too few positions; or all of these.
    """
    names = (*PUBLISHED_SIZES, *more, "positions")
    _refuse_other_sizes(directory, {name: getattr(wanted, name) for name in names}, found)
    return dataclasses.replace(found, **{key: getattr(wanted, key) for key in _CHOSEN})
