"""Every key of a configuration: its default, its quantity, and the reason for the default.

Keys that name the same number as a field of a struct take meaning and bounds from there. Types,
checks of ranges and docs/reference/configuration.md follow from this table.
"""

from typing import Any

import jax
from ml_collections import ConfigDict

from collapipe_jax.config.keys import Key, Unnamed, key, section
from collapipe_jax.control.queues import EffectiveQueueParams
from collapipe_jax.cost.divergence import Learning
from collapipe_jax.cost.switching import SwitchingParams
from collapipe_jax.cost.workload import Workload
from collapipe_jax.federated.optimizers import OPTIMIZERS, SCHEDULES, SERVER_OPTIMIZERS
from collapipe_jax.federated.rules import CLIENT_MOMENTS
from collapipe_jax.models.bert import HEADS, POOLINGS
from collapipe_jax.models.config import (
    ALL_LINEAR,
    ATTENTIONS,
    DTYPES,
    GATED_LAYERS,
    MOST_BLOCKS,
)
from collapipe_jax.network.devices import DeviceParams
from collapipe_jax.network.fading import DynamicsParams
from collapipe_jax.network.mobility import MobilityParams
from collapipe_jax.network.propagation import PropagationParams, TopologyParams
from collapipe_jax.pipeline.execution import BACKENDS
from collapipe_jax.policies.alternating import KNOBS
from collapipe_jax.policies.client_policies import SHARES
from collapipe_jax.policies.registry import POLICIES
from collapipe_jax.simulation.system import ControlParams, RadioParams
from collapipe_jax.tasks.registry import TASKS
from collapipe_jax.tasks.sampling import SCHEMES

Config = Any
"""A ConfigDict; a type checker cannot tell a section of it from a value."""

_SHARE, _RATE = ">= 0 and <= 1", ">= 0 and < 1"
_BLOCKS = f"> 0 and <= {MOST_BLOCKS}"


def _own_seed(what: str) -> Unnamed:
    return key(-1, f"seed of the {what}; -1 takes `seed`", ">= -1")


KEYS: dict[str, Any] = {
    **section(
        seed=key(0, "seed of everything random that has no seed of its own"),
        checkpoint_every_rounds=key(30, "rounds from checkpoint to checkpoint", "> 0"),
        tensorboard=key(False, "write metrics of every round for TensorBoard, too"),
    ),
    "network": section(
        TopologyParams,
        seed=_own_seed("network, its fading and its devices"),
        clusters=key(4),
        devices=key(5),
        file=key(
            "",
            "network, or folder of networks, in place of drawn ones (docs/file-formats.md)",
            why="sets `clusters` and `devices`, too",
        ),
        file_digest=key("", "SHA-256 of `file`, filled in"),
        cell_radius_m=key(500.0, why="macro cell; papers use 300 to 500 m"),
        cluster_radius_m=key(50.0, why="a building; papers use 25 to 50 m"),
        d2e_min_distance_m=key(35.0, why="3GPP TR 36.814: nobody stands under the mast"),
        d2d_min_distance_m=key(3.0, why="3GPP TR 36.885"),
        order=key("drawn"),
    ),
    "propagation": section(
        PropagationParams,
        d2e_path_loss=key(
            "macro_2ghz", why="3GPP TR 36.814, case 1, without walls (20 dB) and antennas (14 dBi)"
        ),
        d2d_path_loss=key(
            "d2d_outdoor",
            why="usual in papers, pessimistic: never in sight; `tr36843_outdoor` has sight",
        ),
        d2e_shadowing_db=key(8.0, why="3GPP TR 36.814"),
        d2d_shadowing_db=key(
            4.0,
            why="WINNER II B1 out of sight, another source than the path loss's; "
            "7 with `tr36843_outdoor`",
        ),
        d2e_decorrelation_distance_m=key(50.0, why="3GPP TR 36.814, by Gudmundson's law"),
        d2d_decorrelation_distance_m=key(
            10.0, why="3GPP TR 36.885, urban; that the ways of both ends add up is ours"
        ),
    ),
    "dynamics": section(
        DynamicsParams,
        MobilityParams,
        fading_correlation=key(0.0, why="J0(2 pi f_d t) is near 0 at walking speed over seconds"),
        d2e_rician_factor=key(
            10.0,
            why="a spread of 2 dB: a gain is a mean over its round, (6) has the fading within; "
            "0: Rayleigh",
        ),
        d2d_rician_factor=key(10.0, why="as for D2E links"),
        availability=key(1.0),
        speed_m_per_s=key(0.0, why="devices stand still; 1.4 is a pedestrian"),
        round_interval_s=key(10.0, why="not a policy's latency: all meet the same network"),
        velocity_correlation=key(0.8, why="Liang and Haas 2003"),
    ),
    "devices": section(
        DeviceParams,
        control_unit=key("jetson_orin_nano", why="the strongest of the catalogue"),
        kinds=key(
            ("jetson_nano", "jetson_tx2", "jetson_xavier_nx", "jetson_orin_nano"),
            why="our choice, with NVIDIA's clocks and powers",
        ),
        utilisation=key(
            0.3,
            why="an assumption: GPUs of data centres reach 0.2 to 0.46 (Chowdhery et al. 2022)",
        ),
        memory_share=key(
            0.003,
            why="scaled with the model: as many blocks fit as of BERT-base, of 0.378 GB at batch "
            "32, in 0.17 of a board; our choice within the 0.1 to 0.4 of `paper`",
        ),
        es_flops_per_s=key(6e12, why="one A100: 19.5 TFLOP/s in single precision, 0.3 of it used"),
        block_overhead_s=key(0.002, why="our estimate: tens of kernel launches on a board"),
        link_overhead_s=key(0.01, why="our estimate: scheduling request and grant in LTE"),
        idle_power_w=key(
            0.0,
            why="the energy of an operation, from a whole board, contains what it idles meanwhile",
        ),
        receive_power_w=key(
            0.0,
            "power that a node draws while it receives",
            symbol="P_{rx}",
            why="off: the paper counts sending alone, and boards of the catalogue name no radio",
        ),
    ),
    "radio": section(
        RadioParams,
        d2e_bandwidth_hz=key(20e6, why="one LTE carrier"),
        d2d_bandwidth_hz=key(10e6, why="half an LTE carrier, our choice; every cluster reuses it"),
        noise_density_dbm_per_hz=key(-174.0, "thermal noise density", why="290 K"),
        bs_noise_figure_db=key(5.0, "noise figure of the base station", why="3GPP TR 36.814"),
        node_noise_figure_db=key(9.0, "noise figure of a node", why="3GPP TR 36.814"),
        d2e_interference_w=key(
            1e-13, why="other cells, about thermal noise on 20 MHz without the noise figure"
        ),
        downlink_interference_w=key(
            -1.0,
            "interference of other cells at a node, whole D2E band; -1 takes `d2e_interference_w`",
            ">= -1",
            symbol="I_{DL}",
            why="a neighbour that reuses the band makes it 6e-12 to 8e-11, see the system model",
        ),
        d2d_activity=key(
            0.5,
            bounds=_SHARE,
            why="about that of local steps; over a whole round of `paper` a node sends for 0.15 of "
            "the time, 0.32 at the 95th percentile (system model, section 2)",
        ),
        snr_gap_db=key(0.0, why="our choice, optimistic: formats of LTE need 2 to 3 dB more"),
        max_spectral_efficiency=key(7.4, why="256-QAM at rate 0.93"),
        bs_power_dbm=key(46.0, why="macro base station"),
        d2e_power_max_dbm=key(23.0, why="handset, power class 3"),
        d2d_power_max_dbm=key(20.0, why="our choice, half the power of a handset"),
        control_unit_power_max_dbm=key(20.0, why="as the devices' D2D power"),
        amplifier_efficiency=key(
            1.0, why="radiated energy alone counts; amplifiers reach 0.35 (Cui et al. 2005)"
        ),
        outage_threshold_db=key(
            -6.7,
            why="LTE's most robust format (CQI 1) at 10 % block errors, by a table common in "
            "simulators; others have -6.9 and -9.5",
        ),
        harq_attempts=key(4, why="LTE's usual limit"),
        transport_block_bits=key(1e5, why="3GPP TS 36.213: 97 896 on 20 MHz and one layer"),
        rate_law=key(
            "mean",
            why="fits links with diversity; `ergodic` assumes Rayleigh fading, as (6) does: up to "
            "0.83 bit/s/Hz less, rounds of `paper` 10 % longer (system model, section 2)",
        ),
        retransmissions=key(
            "free",
            why="as the paper; `counted` makes rounds of `paper` 26 % longer in the mean (limits)",
        ),
        duplex=key(
            "full",
            why="as the paper's latency, in which all links overlap; D2D radios of LTE take turns",
        ),
    ),
    "payload": section(
        activation_number_bits=key(16, "bits of an activation sent", "> 0", why="half precision"),
        parameter_number_bits=key(16, "bits of a parameter sent", "> 0", why="half precision"),
        token_bits=key(16, "bits of a target sent", why="targets travel as token numbers"),
        trained_fraction=key(
            1.0,
            "share of parameters trained and sent, in prices alone; 1 with `adapter_rank`",
            "> 0 and <= 1",
        ),
    ),
    "learning": section(
        Learning,
        gradient_variance=key(
            1.0,
            bounds="> 0",
            why="only its ratio to `gradient_heterogeneity` matters to decisions; for estimates "
            "see `evaluation.estimate_every_rounds`",
        ),
        gradient_heterogeneity=key(
            0.5, why="an assumption, no measurement: on CLINC150 it is 0.03 of the variance"
        ),
        bound=key(
            "one_step",
            "divergence that decisions follow: `one_step` is (19), `local_steps` counts that "
            "clusters drift apart (docs/theory.md) and reads `step_smoothness`",
            choices=("one_step", "local_steps"),
        ),
        step_smoothness=key(
            0.0,
            "learning rate times smoothness, at most 1 / (4 local_steps); of `local_steps`",
            symbol=r"\eta L_s",
            why="meant for plain SGD: Adam's steps are not the rate times the gradient",
        ),
    ),
    "control": section(
        ControlParams,
        EffectiveQueueParams,
        SwitchingParams,
        v=key(
            3.0,
            why="a round as slow as the static pipeline's weighs as much as 3 rounds of queue; at "
            "10 some networks miss a target after 300 rounds, for latency lower by under 1 %",
        ),
        control_unit_budget_j=key(2.0, why="our choice: the cell's edge behind 12 dB of shadowing"),
        control_unit_margin=key(
            2.2,
            why="our choice: losses, fading and interference ask for up to 1.5; without it one "
            "network in twelve has a floor above its budget",
        ),
        device_budget_j=key(0.8, why="our choice: above what most devices spend"),
        divergence_ratio=key(1.2, why="our choice: losses may raise it by a fifth"),
        energy_queue_floor=key(1e-4, why="no energy for nothing; more slows very slow networks"),
        divergence_queue_floor=key(1.0, why="see docs/system-model.md, section 5"),
        unavoidable_arrival_weight=key(0.5, why="half of the arrival is its mean over the round"),
        switching_cost=key(0.0, why="off, as in the paper; more keeps partitions for longer"),
        hysteresis=key(0.0, why="off, as in the paper; more keeps partitions for longer"),
        moments_move=key(
            False,
            "count the optimiser state of a block that changes its device: time and energy of its "
            "way to the new one, of pipelines whose optimiser has any",
            why="off, as in the paper, whose devices get weights alone; docs/system-model.md, "
            "section 12",
        ),
    ),
    "policy": section(
        name=key("dssra", "policy that decides (docs/policies.md)", choices=POLICIES, own=True),
        micro_batches=key(
            8,
            "micro-batches of policies that fix them, of the reference latency, and where dssra, "
            "greedy and alternating start",
            "> 0",
        ),
        best_micro_batches=key(
            False,
            "static_pipeline and titanic_pipelined take the allowed number with the least latency "
            "of the round in place of `micro_batches`",
            why="off, as a pipeline without optimisation; on, rivals at their best",
        ),
        partitions=key(3, "partitions of the policy titanic", "> 0"),
        decides=key(
            KNOBS,
            "knobs that the policy alternating optimises in turns; the others are the static "
            "pipeline's",
            choices=KNOBS,
            why="all of them; one alone shows its part in what is saved",
        ),
        cut=key(
            "half",
            "blocks on a client of splitfed, if its memory holds them: a number, `half` of all, or "
            "`best`, with the least latency of the round",
            symbol="L_c",
            why="client and server share the encoder; `best` makes the fastest rival",
        ),
        shares=key(
            "min_max",
            "shares of the D2E band of data-parallel policies: `equal`, or `min_max`, with which "
            "the slowest client is as fast as it can be",
            choices=SHARES,
            why="a rival at its best; the pipelines of dssra optimise theirs, too",
        ),
        accumulation=key(
            1,
            "pieces of a client's part, which adds up their gradients and keeps the activations of "
            "one; of data-parallel policies with whole models",
            "> 0",
            symbol="A",
            why="off; more needs less memory and launches more passes",
        ),
        broadcast=key(
            True,
            "data-parallel policies send parameters down to all clients in one transmission",
            why="the parameters are the same for all; multicast is part of LTE (eMBMS)",
        ),
        deadline=key(
            0.0,
            "latency after which a policy that ignores the channel leaves a cluster or client out, "
            "in reference latencies, as below the outage SINR; 0 is off",
            why="off: every cluster that can run takes part",
        ),
    ),
    "model": section(
        seed=_own_seed("initial weights"),
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
        feed_forward_width=key(512, "inner size of a feed-forward layer", "> 0", why="4 x width"),
        encoder_blocks=key(6, "encoder blocks", _BLOCKS, symbol="L"),
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
            why="the kernel was not measured yet",
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
            "rows of the table of hashed character n-grams, whose mean joins the embedding of a "
            "word's first piece; of BERT, 0 is off",
            ">= 0",
            why="off, as in BERT; Bojanowski et al. (2017)",
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
        seed=_own_seed("sets drawn from a corpus and of their split over clusters"),
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
    ),
}
"""Every key by name, those of a section in a dictionary of their own."""

RENAMED = {
    "control.energy_reserve": "control.energy_queue_floor",
    "control.divergence_reserve": "control.divergence_queue_floor",
    "control.certain_debt_weight": "control.unavoidable_arrival_weight",
    "control.move_price": "control.switching_cost",
    "propagation.d2e_shadowing_distance_m": "propagation.d2e_decorrelation_distance_m",
    "propagation.d2d_shadowing_distance_m": "propagation.d2d_decorrelation_distance_m",
}
"""Names that keys had before."""


def get_config() -> Config:
    """The default configuration.

    Returns:
      A new ``ConfigDict``, free to be changed; docs/reference/configuration.md has all keys with
      their units.

    Example:
      >>> import collapipe_jax as cp
      >>> config = cp.default_config()
      >>> config.network.devices = 8
      >>> config.network.clusters, config.network.devices
      (4, 8)
    """
    return ConfigDict(
        jax.tree.map(lambda key: key.default, KEYS, is_leaf=lambda each: isinstance(each, Key))
    )
