"""Configurations that the commands know by name.

The first are those of ``make quickstart`` and of the comparison, then follow texts of one's own,
then public corpora. A function of its name makes each; :data:`.config.NAMED` has their variants.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.default import get_config as default


def quickstart() -> Config:
    """The embedded default: a small Transformer on synthetic text, no download.

        make quickstart

    runs it twice, with DSSRA and with the static pipeline: 1 to 3 minutes on 2 cores with
    installation, test BLEU of 66 and 67, and DSSRA in half of the simulated time.
    """
    config = default()
    config.network.update({"clusters": 3, "devices": 4})
    config.model.update({"width": 64, "feed_forward_width": 256, "encoder_blocks": 4})
    config.model.update({"decoder_blocks": 1, "dropout_rate": 0.0})
    config.task.update({"pairs": 8_000, "validation_pairs": 100, "test_pairs": 200})
    config.training.update({"rounds": 80, "warmup_steps": 60})
    # The best of 4, 8 and 16e-3 on validation, for every policy that is a pipeline.
    config.training.update({"client_learning_rate": 8e-3, "decoder_learning_rate": 8e-3})
    config.devices.memory_share = 0.001  # scaled down with the model; see default.py
    config.control.update({"control_unit_budget_j": 0.4, "device_budget_j": 0.1})
    config.evaluation.update({"every_rounds": 20, "beams": 1})
    config.checkpoint_every_rounds = 20
    return config


# docs/system-model.md, section 2: 7 dB over thermal noise, and six base stations at 1 km.
REUSE = {"radio.d2e_interference_w": 1e-12, "radio.downlink_interference_w": 4e-11}


def paper(variant: str = "") -> Config:
    """The comparison of the paper's kind: BERT-base over 4 clusters of 5 boards.

        collapipe compare --config=paper --rounds=100 --realisations=64 --workdir=runs/paper

    docs/results.md has its table. Parameters are those of default.py, each with its source or as
    our choice, with the workload of BERT-base, 32 sequences of 128 tokens. Two were chosen after a
    first look at results: budgets, since nobody can keep those of default.py, made for a tiny
    model; and the share of memory, see below.

    ``paper:rich`` gives training the whole board, which no board can.

    **Memory.** The operating system of a Jetson Nano takes 0.3 to 0.5 GB without a desktop and 1.5
    GB with one, and CUDA with its libraries 2 GB [1]. PyTorch grows by 1.7 GB of main memory, which
    a Jetson shares with its GPU, at its first convolution [2]. Of the 4 GB, 3.9 are visible: 0.4 to
    1.6 GB are left, a share of 0.1 to 0.4. A TX2 of 8 GB has 6.1 GB free under its desktop [3]: 0.5
    of it is left. A desktop takes 0.8 GB [4], so 0.6 without. One share holds for all boards and
    has to be there on the smallest: 0.25 is the middle of its range. It is hard on boards of 8 GB.
    With 0.25 a board of 4 GB does not hold the whole model, as the paper supposes of all. One of 8
    GB does if it accumulates gradients. Under 0.2 two clusters in five hold no encoder.
    ``configs/sweeps.py:memory`` sweeps the share.

    [1] github.com/microsoft/onnxruntime/issues/4259, [2] github.com/pytorch/pytorch/issues/12873,
    [3] github.com/NVIDIA-AI-IOT/tf_to_trt_image_classification/issues/5,
    [4] github.com/dusty-nv/jetson-containers, docs/setup.md.

    ``paper:transformer`` has the workload of Transformer-base translation, and ``paper:lowband``
    makes moving parameters most of a round: every pipeline policy then waits for the same upload,
    and what can be saved on devices and their links is a small part of it. ``paper:reuse`` has
    neighbours on the same carrier, so interference is 10 times stronger at the base station and 400
    times at the nodes.
    """
    config = default()
    # A comparison reads sizes alone, no corpus.
    config.task.update({"kind": "classification", "train": "none", "test": "none"})
    config.task.update({"labels": 150, "vocabulary_size": 30_522, "source_length": 128})
    # Devlin et al. 2018, BERT-base.
    config.model.update({"width": 768, "heads": 12, "feed_forward_width": 3072})
    config.model.update({"encoder_blocks": 12, "dropout_rate": 0.1})
    config.training.update({"batch": 32, "micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.devices.memory_share = 0.25  # a 4 GB board leaves 0.1 to 0.4, see above
    # Rivals at their best, as experiments.studies.rivals finds it.
    config.policy.update({"best_micro_batches": True, "cut": "best", "routes": "gateways"})
    # An uplink of all parameters, and four times the work of a quarter of these tokens, for
    # which clinc150:base has its budgets.
    config.control.update({"control_unit_budget_j": 140.0, "device_budget_j": 480.0})
    if variant == "rich":
        config.devices.memory_share = 1.0
    elif variant == "transformer":
        # Vaswani et al. 2017, base: 6 + 6 blocks of width 512; 32 pairs of 64 tokens.
        config.task.update({"kind": "translation", "train": "", "test": "", "labels": 0})
        config.task.update({"vocabulary_size": 37_000, "source_length": 64, "target_length": 64})
        config.model.update({"width": 512, "heads": 8, "feed_forward_width": 2048})
        config.model.update({"encoder_blocks": 6, "decoder_blocks": 6})
        # In proportion to BERT-base: bits of all parameters, and FLOPs of the encoder.
        config.control.update({"control_unit_budget_j": 50.0, "device_budget_j": 53.0})
    elif variant == "lowband":
        config.radio.d2e_bandwidth_hz = 5e6  # the narrowest common LTE carrier
        config.training.local_steps = 1
    elif variant == "reuse":
        config.update_from_flattened_dict(REUSE)
    return config


def classification() -> Config:
    r"""Texts of one's own with classes, such as intents, over 4 clusters with DSSRA deciding.

        collapipe train --config=classification --config.task.train=train.csv \
            --config.task.test=test.csv --workdir=runs/own

    A small BERT for up to 32 tokens from fresh weights, some minutes on 2 cores whatever the number
    of texts. Files and further keys are in docs/own-data.md.
    """
    config = default()
    config.task.update({"kind": "classification", "vocabulary_size": 3_000, "source_length": 32})
    config.model.update({"encoder_blocks": 4})
    config.training.update({"rounds": 200, "warmup_steps": 200})
    config.training.update({"client_learning_rate": 1e-3, "decoder_learning_rate": 1e-3})
    config.devices.memory_share = 0.002  # scaled down with the model; see default.py
    config.evaluation.every_rounds = 50
    config.checkpoint_every_rounds = 50
    return config


def tagging() -> Config:
    r"""Sentences of one's own with entities, over 4 clusters with DSSRA deciding.

        collapipe train --config=tagging --config.task.train=train.conll \
            --config.task.test=test.conll --workdir=runs/own

    A small BERT for windows of 64 tokens from fresh weights, some minutes on 2 cores whatever the
    number of sentences. Files and further keys are in docs/own-data.md.
    """
    config = classification()
    config.task.update({"kind": "tagging", "source_length": 64})
    # Capitals mark names; dropout teaches the pieces of words that training lacks.
    config.task.update({"lowercase": False, "piece_dropout": 0.2, "vocabulary_size": 8_000})
    config.training.update({"client_learning_rate": 2e-3, "decoder_learning_rate": 2e-3})
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.control.device_budget_j = 1.4  # 1.8 times the work of default.py
    return config


def translation() -> Config:
    r"""Sentence pairs of one's own, over 4 clusters with DSSRA deciding.

        collapipe train --config=translation --config.task.train=train.tsv \
            --config.task.test=test.tsv --workdir=runs/own

    A small Transformer for up to 32 tokens and translations of up to 36, some minutes on 2 cores
    whatever the number of pairs. One file alone, ``--config.task.corpus=pairs.tsv``, is split by
    source. Files and further keys are in docs/own-data.md.
    """
    config = default()
    config.task.update({"corpus": "", "pairs": 0})
    config.task.update({"vocabulary_size": 3_000, "source_length": 32, "target_length": 36})
    config.model.update({"encoder_blocks": 4, "decoder_blocks": 1})
    config.training.update({"rounds": 400, "warmup_steps": 200})
    config.devices.memory_share = 0.002  # scaled down with the model; see default.py
    config.control.divergence_ratio = 1.05  # losses may cost 5 % of the gradient's variance
    config.evaluation.every_rounds = 100
    config.checkpoint_every_rounds = 50
    return config


def masked_lm() -> Config:
    r"""Pre-training of a BERT on texts without labels, over 4 clusters with DSSRA deciding.

        collapipe train --config=masked_lm --config.task.train=texts.txt --workdir=runs/pretrained

    A small BERT for windows of 64 pieces. The folder runs/pretrained/model is a start for other
    tasks with ``model.pretrained``.
    """
    config = classification()
    config.task.update({"kind": "masked_lm", "vocabulary_size": 8_000, "source_length": 64})
    config.model.label_smoothing = 0.0
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.control.device_budget_j = 1.4  # 1.8 times the work of default.py
    return config


def causal_lm() -> Config:
    r"""A decoder-only language model for lines of text, over 4 clusters with DSSRA deciding.

        collapipe train --config=causal_lm --config.task.train=train.txt \
            --config.task.test=test.txt --workdir=runs/own

    A small Llama from fresh weights for up to 32 pieces; longer texts take several rows. Without
    files it learns the invented sentences of ``quickstart``. docs/how-to/language-model.md has the
    formats, and docs/results.md a run on real text.
    """
    config = default()
    config.task.update({"kind": "causal_lm", "vocabulary_size": 2_000, "source_length": 32})
    config.model.update({"encoder_blocks": 4, "key_value_heads": 2, "feed_forward_width": 344})
    config.model.label_smoothing = 0.0  # perplexity pays for it
    config.training.update({"rounds": 400, "warmup_steps": 100})
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.evaluation.every_rounds = 50
    config.checkpoint_every_rounds = 50
    return config


def clinc150(variant: str = "") -> Config:
    """Intents of CLINC150 (150 classes), over 4 clusters that see different domains.

        collapipe train --config=clinc150 --workdir=runs/clinc150

    A small BERT from fresh weights with hashed n-grams of characters and words, 3 to 7 minutes of
    processor time. Test accuracy 91.9, 92.0 and 92.1 with seeds 0, 1 and 2, trained in one place
    92.2, 92.1 and 92.2; the majority class gives 0.7, a linear SVM on TF-IDF 92.7.

    ``clinc150:plain`` does without n-grams, with 4 wider blocks. Test accuracy 90.2, 90.2 and 90.1
    with seeds 0, 1 and 2, trained in one place 89.7, 89.8 and 89.6.

    ``clinc150:base`` is BERT-base, for a GPU: from fresh weights, or with
    ``--config.model.pretrained=DIR`` from a folder of bert-base-uncased. The result is in
    ``model/`` of the workdir, as Hugging Face lays it out. Only its checks and its network have
    been run so far, no training.
    """
    config = classification()
    config.task.update(
        {
            "train": "cls_clinc150/data_full.json#train",
            "validation": "cls_clinc150/data_full.json#val",
            "test": "cls_clinc150/data_full.json#test",
            "domains": "cls_clinc150/domains.json",
            "labels": 150,
            "source_length": 24,
            "split": "dirichlet",  # by domain, 10 of them
        }
    )
    config.training.rounds = 400
    if not variant:
        _generalise(config)
    if variant == "base":
        _enlarge(config)
        config.task.source_length = 32
        config.training.warmup_steps = 160
        config.control.update({"control_unit_budget_j": 140.0, "device_budget_j": 120.0})
    return config


def _generalise(config: Config) -> None:
    """Give it features of words as a linear model has them, and regularise it."""
    ngrams = {"ngram_buckets": 20_000, "word_ngrams": 2, "ngram_combiner": "sqrtn"}
    config.model.update({**ngrams, "pooling": "mean", "dropout_rate": 0.35})
    config.devices.memory_share = 0.006  # of a control unit that holds this embedding
    # Two small blocks make a pipeline; one alone was 0.4 points better in one place.
    config.model.update({"encoder_blocks": 2, "feed_forward_width": 128})
    config.training.update({"client_optimizer": "adamw", "decoder_optimizer": "adamw"})
    config.training.update({"weight_decay": 0.2, "server_average": 0.95})
    config.training.update({"client_learning_rate": 4e-3, "decoder_learning_rate": 4e-3})
    config.training.update({"batch": 32, "length_buckets": 3})


def _enlarge(config: Config) -> None:
    """Give a configuration of BERT the sizes, vocabulary and step sizes of BERT-base."""
    config.model.update({"width": 768, "heads": 12, "feed_forward_width": 3072})
    config.model.update({"encoder_blocks": 12, "compute_dtype": "bfloat16"})
    config.model.initial_deviation = 0.02  # as published
    config.task.update({"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt"})
    config.task.update({"vocabulary_size": 30_522, "lowercase": True})
    config.training.update({"batch": 32, "micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.training.update({"client_learning_rate": 5e-5, "decoder_learning_rate": 5e-5})
    config.devices.memory_share = 0.25  # a quarter of the board is free to train


def bc5cdr(variant: str = "") -> Config:
    """Chemicals and diseases in PubMed abstracts (BC5CDR), over 4 clusters with DSSRA deciding.

        collapipe train --config=bc5cdr --workdir=runs/bc5cdr

    A small BERT from fresh weights with hashed n-grams and a chain of tags, 4 to 8 minutes of
    processor time. Test span F1 77.8, 77.7 and 77.8 with seeds 0, 1 and 2, trained in one place
    77.5 with seed 0. Remembering each word's most frequent tag gives 58.3, a linear tagger 76.6.

    ``bc5cdr:plain`` does without n-grams and chain. Test span F1 65.0, 64.3 and 64.3 with seeds 0,
    1 and 2, trained in one place 64.0, 63.8 and 64.4.

    ``bc5cdr:base`` is BERT-base, as in ``clinc150:base``; it has not been trained yet either.
    """
    config = tagging()
    config.task.update(
        {
            "train": "ner_bc5cdr/train.tsv",
            "validation": "ner_bc5cdr/devel.tsv",
            "test": "ner_bc5cdr/test.tsv",
            "labels": 5,
            # Every word that training has twice is whole; dropout teaches the pieces of others.
            "vocabulary_size": 12_000,
        }
    )
    if not variant:
        # Endings tell chemicals, as they do to a linear model; a chain keeps tags together.
        config.model.update({"ngram_buckets": 30_000, "ngram_combiner": "sqrtn"})
        config.devices.memory_share = 0.011  # of a control unit that holds this embedding
        config.model.update({"head": "crf", "label_smoothing": 0.0})
        # Fewer blocks, more dropout and decay, and an average of parameters generalise better.
        config.model.update({"encoder_blocks": 2, "dropout_rate": 0.3})
        config.training.update({"client_optimizer": "adamw", "decoder_optimizer": "adamw"})
        config.training.update({"weight_decay": 0.1, "server_average": 0.9})
        config.training.length_buckets = 3  # most sentences are half as long as a row
        config.training.embedding_rate_factor = 4.0  # of 4 clusters; better than 0 on validation
    if variant == "base":
        _enlarge(config)
        config.task.source_length = 128
        config.training.warmup_steps = 80
        config.control.update({"control_unit_budget_j": 160.0, "device_budget_j": 480.0})
    return config


def tatoeba(variant: str = "") -> Config:
    """English to German on Tatoeba sentence pairs, over 4 clusters with DSSRA deciding.

        collapipe train --config=tatoeba --workdir=runs/tatoeba

    A small Transformer on 30 000 pairs, about 6 minutes on 2 cores. Greedy test BLEU 18.6, mean of
    seeds 0 to 4; copying the source gives 0.4.

    ``tatoeba:base`` takes all pairs and a Transformer of the size of Vaswani et al. (2017), for a
    GPU. Only its checks and its network have been run so far, no training.
    """
    config = translation()
    config.task.update({"corpus": "mt_tatoeba_deu_eng/deu.txt", "pairs": 30_000})
    config.task.update({"validation_pairs": 500, "test_pairs": 1_000})
    config.task.update({"source_length": 20, "target_length": 24})
    config.model.dropout_rate = 0.0  # four epochs: the model does not overfit yet
    if variant == "base":
        config.model.update({"width": 512, "heads": 8, "feed_forward_width": 2048})
        config.model.update({"encoder_blocks": 6, "decoder_blocks": 6, "dropout_rate": 0.1})
        config.model.compute_dtype = "bfloat16"
        config.task.update({"pairs": 160_000, "vocabulary_size": 16_000})
        config.task.update({"source_length": 32, "target_length": 36})
        config.training.update({"rounds": 3_000, "batch": 64, "warmup_steps": 4_000})
        config.training.update({"micro_batch_choices": (1, 2, 4, 8, 16, 32, 64)})
        config.training.update({"client_learning_rate": 7e-4, "decoder_learning_rate": 7e-4})
        config.devices.memory_share = 0.1
        config.control.update({"control_unit_budget_j": 42.0, "device_budget_j": 55.0})
    return config
