"""Keys of a configuration: default, quantity and reason of one value each."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from collapipe_jax.core.quantity import (
    MOST_BLOCKS,
    Quantity,
    Struct,
    linear_name,
    quantities,
    unit_of,
)
from collapipe_jax.edge.cost.problem import Workload
from collapipe_jax.learning.federated.optimizers import (
    CLIENT_MOMENTS,
    OPTIMIZERS,
    SCHEDULES,
    SERVER_OPTIMIZERS,
)
from collapipe_jax.learning.federated.privacy import UNITS
from collapipe_jax.learning.models.bert import HEADS, POOLINGS
from collapipe_jax.learning.models.config import (
    ALL_LINEAR,
    ATTENTIONS,
    COMBINERS,
    DTYPES,
    GATED_LAYERS,
    MOST_WORDS,
)
from collapipe_jax.learning.pipeline.execution import BACKENDS
from collapipe_jax.learning.tasks.registry import TASKS
from collapipe_jax.learning.tasks.sampling import SCHEMES
from collapipe_jax.learning.tasks.scores import AUTO, TOKENIZERS

_LEVEL_BOUNDS = ">= -300 and <= 300"  # of dB and dBm


class Key(NamedTuple):
    """A key of a configuration."""

    default: Any  # its value, which also fixes its type
    quantity: Quantity  # what the value is
    why: str  # reason for the default, or its source


_Unnamed = Callable[[str, Mapping[str, Quantity]], Key]
"""A key that still lacks its name, and the fields that may describe it."""


def key(
    default: Any, meaning: str = "", bounds: str = "", *, why: str = "", **changes: Any
) -> _Unnamed:
    """A key of a :func:`section`, and attributes of its :class:`Quantity`.

    A field of the section's structs describes a key without a meaning.
    """

    def describe(name: str, fields: Mapping[str, Quantity]) -> Key:
        is_level = name not in fields and unit_of(name).startswith("dB")
        if meaning:
            known = Quantity(meaning=meaning)
        else:
            known = fields[linear_name(name) if is_level else name]
        item = default[0] if isinstance(default, tuple) else default
        own = {
            "shape": "",
            "unit": unit_of(name) if meaning or is_level else known.unit,
            "bounds": bounds or (_LEVEL_BOUNDS if is_level else known.bounds),
            "whole": type(item) is int,
            "plausible": "",  # of documents, where nothing else tells a slip
            "slip": "",
        }
        return Key(default, dataclasses.replace(known, **own, **changes), why)

    return describe


def own_seed(what: str) -> _Unnamed:
    """The seed of a part, which may follow that of everything."""
    return key(-1, f"seed of the {what}; -1 takes `seed`", ">= -1")


def section(*structs: type[Struct], **keys: _Unnamed) -> dict[str, Key]:
    """Keys by name, described by the fields of the same names.

    A key in dB or dBm is described by the field of its name on a linear scale.
    """
    fields = {name: each for struct in structs for name, each in quantities(struct).items()}
    return {name: describe(name, fields) for name, describe in keys.items()}


# Keys of what learns: model, pipeline, task, training and evaluation.

_SHARE, _RATE = ">= 0 and <= 1", ">= 0 and < 1"
_BLOCKS = f"> 0 and <= {MOST_BLOCKS}"

LEARNING_KEYS: dict[str, Any] = {
    "model": section(
        seed=own_seed("initial weights"),
        pretrained=key("", "model to start from: a folder in the layout of Hugging Face"),
        width=key(128, "size of an activation", "> 0", symbol="h"),
        heads=key(4, "attention heads", "> 0"),
        key_value_heads=key(
            0,
            "heads of keys and values of causal_lm, a divisor of `heads`; 0 takes `heads`",
            symbol="g",
            why="fewer have fewer parameters (Ainslie et al. 2023)",
        ),
        head_size=key(0, "numbers of a head of causal_lm; 0 takes `width` / `heads`", symbol="d"),
        query_bias=key(False, "biases of queries, keys and values of causal_lm, as in Qwen2"),
        query_key_norm=key(False, "norms of queries and keys of causal_lm, as in Qwen3"),
        feed_forward_width=key(512, "inner size of a feed-forward layer", "> 0", why="4 x width"),
        encoder_blocks=key(6, "encoder blocks", _BLOCKS, symbol="L"),
        server_blocks=key(
            0,
            "last encoder blocks of a pipeline, which the edge server holds beside the decoder; "
            "clients of data-parallel policies keep their whole model, or that of `policy.cut`",
            ">= 0",
            symbol="L_{ES}",
            why="0: as published; each one takes work and parameters off devices and links",
        ),
        min_cluster_blocks=key(
            -1,
            "least encoder blocks that a cluster of a pipeline keeps. The first round then decides "
            "how many the edge server holds, from `server_blocks` on; -1: `server_blocks`",
            ">= -1",
            symbol="L_C^{min}",
            why="-1: as published; docs/system-model.md, section 16",
        ),
        decoder_blocks=key(2, "decoder blocks of translation", _BLOCKS, why="few lose little"),
        dropout_rate=key(0.1, "share of activations that training drops", _RATE),
        attention_dropout_rate=key(
            -1.0,
            "share of attention weights that training drops; -1 takes `dropout_rate`",
            ">= -1 and < 1",
            why="BERT's is that of activations (Devlin et al. 2019)",
        ),
        attention=key(
            "einsum",
            "`einsum`, or `cudnn`: the fused kernel of NVIDIA's GPUs, which needs bfloat16 and no "
            "dropout of attention weights",
            choices=ATTENTIONS,
            why="11 % faster on an H100 with BERT-base",
        ),
        label_smoothing=key(0.1, "share of a target that is spread over the other labels", _RATE),
        rematerialise=key(
            False,
            "recompute activations: less memory, a third more work",
            why="off: it costs time and energy where memory suffices (Chen et al. 2016)",
        ),
        compute_dtype=key("float32", "type of products, summed in 32 bits", choices=DTYPES),
        initial_deviation=key(0.0, "deviation of fresh weights; 0 is LeCun's law", _RATE),
        adapter_rank=key(
            0,
            "rank of the encoder's adapters (LoRA), which are trained with the decoder or head "
            "while embedding and blocks stay as they are; 0 trains everything",
            ">= 0",
            symbol="r",
            why="off; 8 is usual (Hu et al. 2022)",
        ),
        adapter_alpha=key(
            16.0,
            "scale of an adapter times its rank",
            "> 0",
            symbol=r"\alpha",
            why="twice the usual rank; read with `adapter_rank` above 0",
        ),
        adapter_targets=key(
            ("query", "value"),
            "linear maps with an adapter, or `all`",
            choices=(*GATED_LAYERS, ALL_LINEAR),
            why="those of Hu et al. 2022",
        ),
        adapter_freezes_a=key(
            False,
            "train and send `B` of adapters alone: the mean over clusters is then exact",
            why="off, as PEFT trains; on is FFA-LoRA (Sun et al. 2024)",
        ),
        base_dtype=key(
            "float32",
            "type in which blocks hold their frozen weights; products widen them",
            choices=DTYPES,
            why="read with `adapter_rank` above 0; `bfloat16` halves the memory of a frozen block",
        ),
        pooling=key(
            "first",
            "of classification, what the pooler maps: the hidden state of `[CLS]`, or the mean of "
            "all pieces",
            choices=POOLINGS,
            why="as BERT",
        ),
        head=key(
            "linear",
            "of tagging: `linear` chooses each tag on its own, `bio` the best sequence of tags "
            "that BIO allows, `crf` learns scores of pairs of tags besides",
            choices=HEADS,
            why="as BERT; `crf` needs `label_smoothing` 0 (Lafferty et al. 2001)",
        ),
        ngram_buckets=key(
            0,
            "rows of the table of hashed character n-grams, which join the embedding of a word's "
            "first piece; of BERT, 0 is off",
            ">= 0",
            why="off, as in BERT; Bojanowski et al. (2017)",
        ),
        word_ngrams=key(
            1,
            "longest n-gram of words, which join at its last word; above 1 read with "
            "`ngram_buckets` above 0",
            f"> 0 and <= {MOST_WORDS}",
            why="characters alone; 2 are pairs of words (Joulin et al. 2017)",
        ),
        ngram_combiner=key(
            "mean",
            "what joins: the `mean` of the n-grams, or `sqrtn`, their sum over the root of their "
            "number",
            choices=COMBINERS,
            why="fastText has the mean; `sqrtn` is as large as the embedding of a piece",
        ),
    ),
    "pipeline": section(
        Workload,
        backend=key(
            "sequential",
            "`sequential` scans the encoder, others run its segments, `sharded` on a mesh of "
            "devices; the result is the same (docs/pipeline.md)",
            choices=BACKENDS,
        ),
        micro_batches=key(
            1,
            "micro-batches of a pipeline that runs, while the clock has the decided number; 0 runs "
            "that one, with the backend `sharded`",
            ">= 0",
            why="1: the number changes no result (docs/pipeline.md)",
        ),
        capacity=key(
            0,
            "most blocks that a device of a pipeline may take, and its room on the mesh of "
            "`sharded`; 0 is all blocks",
            ">= 0",
            symbol=r"\delta_{\max}",
            why="off: memory alone limits a device; less gives a device of the mesh less memory",
        ),
        schedule=key(
            "gpipe",
            why="Huang et al. 2019; `1f1b` (Narayanan et al. 2019, 2021, with a flush) keeps "
            "fewer, and `sharded` executes both (docs/pipeline.md)",
        ),
    ),
    "task": section(
        seed=own_seed("sets drawn from a corpus and of their split over clusters"),
        kind=key(
            "translation",
            "kind of task; tagging and classification with BERT, causal_lm with Llama's blocks",
            choices=TASKS,
            own=True,
        ),
        corpus=key(
            "synthetic",
            "of translation: one file of pairs, or `A|B` for two aligned ones, split by source; "
            "unread or empty where `train` names a file. Paths may be below $COLLAPIPE_DATA "
            "(docs/file-formats.md). `synthetic` serves causal_lm, too",
        ),
        reverse=key(False, "translate from the second column to the first"),
        pairs=key(20_000, "pairs of `corpus` in all; 0 takes all of a file"),
        validation_pairs=key(200, "pairs of `corpus` for validation", "> 0"),
        test_pairs=key(500, "pairs of `corpus` for the test", "> 0"),
        target_length=key(28, "tokens of a target; longer pairs are dropped and counted", "> 0"),
        train=key("", "file of the training set (docs/own-data.md)"),
        validation=key("", "file of the validation set; empty draws it from the training set"),
        test=key("", "file of the test set"),
        samples=key(0, "texts, sentences or pairs of `train` to train on; 0 takes all"),
        validation_samples=key(
            0, "samples of `train` drawn for validation; 0 is a tenth, 1000 at most"
        ),
        skip_broken=key(
            False, "leave broken lines of files out, with a warning; else they are refused"
        ),
        text_column=key("", "column or key of texts; empty is `text`"),
        label_column=key("", "column or key of classes; empty is `category` or `label`"),
        tagged=key(
            False, "of masked_lm: files hold words with tags, as those of tagging do, not texts"
        ),
        masked_share=key(
            0.15, "share of pieces that masked_lm hides", "> 0 and < 1", why="Devlin et al. (2019)"
        ),
        whole_words=key(
            False, "masked_lm hides words in place of pieces", why="as first published"
        ),
        labels=key(0, "labels, classes or tags with `O`; 0 has training count them in its files"),
        domains=key("", "JSON {domain: [class, ...]}, the keys of a natural split"),
        vocabulary=key("", "vocab.txt of WordPiece; without, it is learned from the training set"),
        lowercase=key(True, "lower the case of texts, of tagging and classification"),
        piece_dropout=key(
            0.0,
            "rate at which WordPiece skips pieces in training, of tagging and classification",
            _SHARE,
            why="off; above 0 words split otherwise in every pass (Hiraoka 2022)",
        ),
        vocabulary_size=key(600, "entries of the vocabulary", "> 0"),
        source_length=key(
            24, "tokens of a source or text; longer pairs are dropped, longer texts cut", "> 0"
        ),
        packing=key(
            False,
            "pack several prompts with answers in a row of `source_length`, each attending to "
            "itself alone, of causal_lm; mini-batches then count rows",
            why="off: fine-tuning sets it for such texts (Krell et al. 2021)",
        ),
        split=key(
            "iid",
            "split of samples over clusters: `iid`; `dirichlet` over length of the source, type of "
            "entity, class or domain; `natural`: a domain or type of entity belongs to one cluster",
            choices=SCHEMES,
        ),
        concentration=key(
            0.5, "concentration of the Dirichlet split; 0.1 is skew, 100 almost none", ">= 0.001"
        ),
    ),
    "training": section(
        Workload,
        rounds=key(150, "rounds of a run", "> 0"),
        local_steps=key(4),
        batch=key(16),
        length_buckets=key(
            1,
            "lengths that mini-batches are padded to; above 1 a round's texts are of similar "
            "length, and short ones compute less. The price of a round stays that of whole rows",
            ">= 1 and <= 16",
            why="1: rows are whole; each length is compiled",
        ),
        micro_batch_choices=key((1, 2, 4, 8, 16)),
        client_optimizer=key(
            "adam", "optimiser of the clusters", choices=OPTIMIZERS, why="Transformers want it"
        ),
        decoder_optimizer=key("adam", "optimiser of the decoder", choices=OPTIMIZERS),
        client_learning_rate=key(2e-3, "learning rate of the clusters", "> 0"),
        embedding_rate_factor=key(
            0.0,
            "factor on the averaged step of a row in the embedding's tables of tokens and n-grams; "
            "0 averages it over the clients that read the row in the round, 1 over all",
            why="few clusters meet a rare token, and averaging divides its step by all of them "
            "(Ding et al. 2021)",
        ),
        decoder_learning_rate=key(2e-3, "learning rate of the decoder", "> 0"),
        weight_decay=key(
            0.0,
            "decoupled weight decay of `adamw`, at clients and decoder; biases and scales of norms "
            "have none",
            why="Loshchilov and Hutter 2019; BERT has 0.01",
        ),
        proximal_weight=key(
            0.0,
            "weight of FedProx, which draws clients to the global parameters; 0 is off",
            symbol=r"\mu",
            why="off: Li et al. 2020 try 0.001 to 1",
        ),
        control_variates=key(
            False,
            "correct the clients' gradients by control variates (SCAFFOLD), which travel and are "
            "priced as parameters are",
            why="off: twice the parameters on the links (Karimireddy et al. 2020)",
        ),
        client_moments=key(
            "keep",
            "moments of the clients' optimisers after a round: `keep` them, `average` them with "
            "the parameters, priced alike, or `reset` them",
            choices=CLIENT_MOMENTS,
            why="kept ones need no messages",
        ),
        erased_together=key(
            "micro_batch",
            "what one draw erases; (17) has the first",
            choices=("micro_batch", "round"),
        ),
        survivor_weight=key(
            "survival",
            "weight of survivors: over their chance of `survival`, without bias, or `pooled`, a "
            "mean of all, which favours good links",
            choices=("survival", "pooled"),
        ),
        schedule=key("cosine", "schedule of the rates", choices=SCHEDULES),
        warmup_steps=key(80, "local steps of rising rates", why="Adam on a fresh Transformer"),
        clip_norm=key(1.0, "largest norm of a gradient; 0 is off", why="usual for Transformers"),
        server_optimizer=key(
            "sgd",
            "optimiser of the edge server: `sgd` is federated averaging, others are FedOpt (Reddi "
            "et al. 2021)",
            choices=SERVER_OPTIMIZERS,
        ),
        server_learning_rate=key(1.0, "learning rate of the edge server", "> 0"),
        server_average=key(
            0.0,
            "decay by rounds of an average of the parameters, which is scored and exported; 0 is "
            "off, and takes those of the last round",
            _RATE,
            why="off; 0.9 averages some 10 rounds",
        ),
        activation_noise=key(
            0.0,
            "deviation of the noise on activations that pipelines send to the edge server, over "
            "their root mean square",
            ">= 0",
            why="off; docs/how-to/privacy.md has what it hides and what it costs",
        ),
    ),
    "privacy": section(
        seed=own_seed("noise of privacy, which is as secret as the data"),
        epsilon=key(
            0.0,
            "epsilon of the whole run, to which the noise is set; 0 leaves it to "
            "`noise_multiplier`",
            ">= 0",
            symbol=r"\epsilon",
            why="off (docs/how-to/privacy.md)",
        ),
        noise_multiplier=key(
            0.0,
            "deviation of the noise over the sensitivity; 0 and no `epsilon` is no privacy",
            ">= 0",
            symbol="z",
            why="off",
        ),
        delta=key(
            1e-5,
            "chance with which `epsilon` may fail, far below one over the number of units",
            "> 0 and < 1",
            symbol=r"\delta",
            why="usual for up to some 10 000 units",
        ),
        unit=key(
            "cluster",
            "whose data are protected: those of a `cluster`, by a server that is trusted, or an "
            "`example`, by its own client, of data-parallel policies",
            choices=UNITS,
            why="a cluster's texts are mostly of one owner",
        ),
        clip_norm=key(
            1.0,
            "largest norm of a client's step in a round, or of an example's gradient",
            "> 0",
            symbol="C",
            why="no value fits all: the usual start is the median of the norms without privacy",
        ),
        decoder_clip_norm=key(
            1.0,
            "largest norm of a cluster's gradient by the decoder at the server; of pipelines",
            "> 0",
            symbol="C_d",
            why="as `clip_norm`, but of a gradient",
        ),
        examples_at_once=key(
            1,
            "examples of which a client holds the gradients at once, of `example`; 0 holds all",
            ">= 0",
            why="the fastest on a CPU (docs/how-to/privacy.md); memory is a model for each of them",
        ),
    ),
    "evaluation": section(
        every_rounds=key(30, "rounds from score to score", "> 0"),
        estimate_every_rounds=key(
            0,
            "rounds from one estimate of the bound's constants to the next; 0 is never",
            why="one is as much work as about 10 rounds of 4 local steps",
        ),
        keep_best=key(
            False,
            "test and export the parameters with the best validation score instead of the last",
            why="off: a cosine schedule ends with small steps",
        ),
        by_cluster=key(
            False,
            "score the validation set for every cluster by the mix of its own samples, of "
            "classification",
            why="off: predicts the validation set a second time",
        ),
        beams=key(
            4, "beams of a second final score; 1 leaves it at the greedy one", "> 0 and <= 1000"
        ),
        length_penalty=key(0.6, "length penalty of beam search", why="Wu et al. 2016"),
        bleu_tokenizer=key(
            AUTO,
            "what cuts translations into tokens for BLEU, by sacreBLEU's names; `auto` chooses by "
            "the script of the training targets",
            choices=TOKENIZERS,
            why="`13a` cuts no text without spaces; the signature beside the score says the choice",
        ),
    ),
}
