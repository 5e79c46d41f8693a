"""Names on file of all models: one table of tensors, and one of sizes.

BERT: https://huggingface.co/docs/transformers/model_doc/bert. Llama, Qwen2 and Qwen3: .../llama,
.../qwen2 and .../qwen3. Adapters of PEFT have these names, too. The translator's tensors on file
have the paths of our parameters.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError

# Our layer or table; its name in BertModel; its name in Llama and Qwen. {} is the number of a block
_TENSORS: tuple[tuple[str, str, str], ...] = (
    ("embedding/word", "embeddings.word_embeddings", "model.embed_tokens"),
    ("embedding/position", "embeddings.position_embeddings", ""),
    ("embedding/token_type", "embeddings.token_type_embeddings", ""),
    ("embedding/ngram", "embeddings.ngram_embeddings", ""),
    ("embedding/norm", "embeddings.LayerNorm", ""),
    ("encoder/attention_norm", "encoder.layer.{}.attention.output.LayerNorm",
     "model.layers.{}.input_layernorm"),
    ("encoder/attention/query", "encoder.layer.{}.attention.self.query",
     "model.layers.{}.self_attn.q_proj"),
    ("encoder/attention/key", "encoder.layer.{}.attention.self.key",
     "model.layers.{}.self_attn.k_proj"),
    ("encoder/attention/value", "encoder.layer.{}.attention.self.value",
     "model.layers.{}.self_attn.v_proj"),
    ("encoder/attention/out", "encoder.layer.{}.attention.output.dense",
     "model.layers.{}.self_attn.o_proj"),
    ("encoder/attention/query_norm", "", "model.layers.{}.self_attn.q_norm"),
    ("encoder/attention/key_norm", "", "model.layers.{}.self_attn.k_norm"),
    ("encoder/feed_forward_norm", "encoder.layer.{}.output.LayerNorm",
     "model.layers.{}.post_attention_layernorm"),
    ("encoder/feed_forward/gate", "", "model.layers.{}.mlp.gate_proj"),
    ("encoder/feed_forward/inner", "encoder.layer.{}.intermediate.dense",
     "model.layers.{}.mlp.up_proj"),
    ("encoder/feed_forward/outer", "encoder.layer.{}.output.dense",
     "model.layers.{}.mlp.down_proj"),
    ("decoder/norm", "", "model.norm"),
    ("decoder/word", "", "lm_head"),
    ("pooler", "pooler.dense", ""),
    ("head", "classifier", ""),
    ("transitions", "classifier.transitions", ""),
    ("transform", "cls.predictions.transform.dense", ""),
    ("transform_norm", "cls.predictions.transform.LayerNorm", ""),
    ("output", "cls.predictions.decoder", ""),
)  # fmt: skip

# Our size; its key in config.json of BERT, and of Llama and Qwen; the value of an absent key, or
# the two of them where they differ
_SIZES: tuple[tuple[str, str, str, Any], ...] = (
    ("width", "hidden_size", "hidden_size", None),
    ("heads", "num_attention_heads", "num_attention_heads", None),
    ("feed_forward_width", "intermediate_size", "intermediate_size", None),
    ("encoder_blocks", "num_hidden_layers", "num_hidden_layers", None),
    ("vocabulary_size", "vocab_size", "vocab_size", None),
    ("positions", "max_position_embeddings", "max_position_embeddings", None),
    ("token_types", "type_vocab_size", "", None),
    ("dropout_rate", "hidden_dropout_prob", "", 0.1),
    ("attention_dropout_rate", "attention_probs_dropout_prob", "attention_dropout", (0.1, 0.0)),
    ("norm_epsilon", "layer_norm_eps", "rms_norm_eps", (1e-12, 1e-6)),
    ("initial_deviation", "initializer_range", "initializer_range", 0.02),
    ("ngram_buckets", "collapipe_ngram_buckets", "", 0),
    ("word_ngrams", "collapipe_word_ngrams", "", 1),
    ("ngram_combiner", "collapipe_ngram_combiner", "", "mean"),
)


class Layout(NamedTuple):
    """Names of one kind of model."""

    tensors: Mapping[str, str]  # by the path of our layer or table
    sizes: Mapping[str, tuple[str, Any]]  # key in config.json and value of an absent one, by ours

    def read_sizes(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes in ``config.json``."""
        return {ours: document.get(key, absent) for ours, (key, absent) in self.sizes.items()}

    def pattern(self, target: str) -> str:
        """Regular expression of a linear map's names in all blocks; empty if they have none."""
        names = [name for path, name in self.tensors.items() if path.endswith(f"/{target}")]
        return re.escape(names[0]).replace(r"\{\}", r"\d+") if names else ""

    def size_keys(self, path: Path) -> dict[str, str]:
        """Keys to blame in ``config.json``, by ours in ``model``; see ``rename_error_keys``."""
        return {f"model.{ours}": f"{path}: {key}" for ours, (key, _) in self.sizes.items()}

    def written_sizes(self, config: Any, without: Sequence[str] = ()) -> dict[str, Any]:
        """Keys of ``config.json`` for these sizes."""
        if config.initial_deviation == 0.0:
            problem, remedy = "has no place in config.json", "Give one, such as 0.02"
            raise InputError("model.initial_deviation", 0.0, problem, remedy)
        rows = self.sizes.items()
        return {key: getattr(config, ours) for ours, (key, _) in rows if ours not in without}


def _layout(column: int) -> Layout:
    """The layout of a column of the tables."""
    sizes = {}
    for ours, *keys, absent in _SIZES:
        if keys[column]:
            sizes[ours] = keys[column], absent[column] if isinstance(absent, tuple) else absent
    tensors = {ours: names[column] for ours, *names in _TENSORS if names[column]}
    return Layout(tensors, sizes)


BERT, CAUSAL = _layout(0), _layout(1)
"""Layouts of BERT, and of Llama, Qwen2 and Qwen3."""
