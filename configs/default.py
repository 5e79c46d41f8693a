"""Every key, with its unit in its name, its value and the reason for it.

    python -m experiments.train --config=configs/default.py --workdir=runs/default

Other configurations start from this one and change some keys. Trains a Transformer of 6 + 2
blocks on synthetic text over 4 clusters of 5 devices: under 8 minutes on 2 cores, greedy test
BLEU 96.3 (copying the source: 0.0).
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The default configuration."""
    config = ml_collections.ConfigDict()
    config.seed = 0  # of everything random: network, data order, erasures, parameters

    config.network = ml_collections.ConfigDict(
        {
            "clusters": 4,  # N
            "devices": 5,  # K per cluster, besides its control unit
            "cell_radius_m": 500.0,  # macro cell; papers use 300 to 500 m
            "cluster_radius_m": 50.0,  # a building; papers use 25 to 50 m
            "d2e_min_distance_m": 35.0,  # 3GPP TR 36.814: nobody stands under the mast
            "d2d_min_distance_m": 3.0,
            # Blocks go through the devices in this order; "tour" walks to the nearest one left.
            "order": "drawn",
        }
    )
    config.propagation = ml_collections.ConfigDict(
        {
            "d2e_path_loss": "macro_2ghz",  # 3GPP TR 36.814
            "d2d_path_loss": "d2d_outdoor",  # 3GPP TR 36.843, pessimistic; see also winner_b1_sight
            "d2e_shadowing_db": 8.0,  # 3GPP TR 36.814
            "d2d_shadowing_db": 4.0,  # the law's companion value for sight and none, mixed
            "d2e_shadowing_distance_m": 50.0,  # Gudmundson 1991, suburban macro cell
            "d2d_shadowing_distance_m": 10.0,  # 3GPP TR 36.885, urban, by Gudmundson's law
        }
    )
    config.dynamics = ml_collections.ConfigDict(
        {
            # J0(2 pi f_d t) is near 0 at walking speed and rounds of seconds: drawn anew.
            "fading_correlation": 0.0,
            # A gain is a mean over its round, and Rayleigh fading inside the round is part of
            # the loss (6); what is left from round to round is small. 10 means 2 dB; 0 would
            # be Rayleigh.
            "d2e_rician_factor": 10.0,
            "d2d_rician_factor": 10.0,
            "availability": 1.0,  # probability that a device is there in a round
            # Devices walk inside their cluster's disc; 0: all stand still, 1.4: a pedestrian.
            "speed_m_per_s": 0.0,
            # From one round's start to the next, however long a policy's rounds take, so that
            # all policies meet the same network.
            "round_interval_s": 10.0,
            "velocity_correlation": 0.8,  # from round to round; Liang and Haas 2003
        }
    )
    config.devices = ml_collections.ConfigDict(
        {
            "control_unit": "jetson_orin_nano",  # the strongest of the catalogue
            # Drawn for every device; the catalogue is collapipe_jax/network/devices.py.
            "kinds": ("jetson_nano", "jetson_tx2", "jetson_xavier_nx", "jetson_orin_nano"),
            "utilisation": 0.3,  # training reaches 0.2 to 0.4 of a device's peak
            # Scaled down with the model, so that a device holds as many of its blocks as it
            # would of BERT-base at batch 32 of 128 tokens (0.7 GB a block in single precision).
            "memory_share": 0.003,
            "es_flops_per_s": 6e12,  # one A100: 19.5 TFLOP/s in single precision, 0.3 of it used
            "block_overhead_s": 0.002,  # some tens of kernel launches on an embedded board
            "link_overhead_s": 0.01,  # scheduling request and grant in LTE
        }
    )
    config.radio = ml_collections.ConfigDict(
        {
            "d2e_bandwidth_hz": 20e6,  # one LTE carrier
            "d2d_bandwidth_hz": 10e6,  # reused by every cluster
            "noise_density_dbm_per_hz": -174.0,  # thermal, 290 K
            "bs_noise_figure_db": 5.0,  # 3GPP TR 36.814
            "node_noise_figure_db": 9.0,
            "d2e_interference_w": 1e-13,  # other cells, as strong as thermal noise on 20 MHz
            "d2d_activity": 0.5,  # a sender of another cluster is on air half of the time
            "snr_gap_db": 0.0,  # capacity-achieving code; 3 dB is cautious
            "max_spectral_efficiency": 7.4,  # 256-QAM at rate 0.93
            "bs_power_dbm": 46.0,  # macro base station
            "d2e_power_max_dbm": 23.0,  # handset, power class 3
            "d2d_power_max_dbm": 20.0,  # 0.1 W
            "control_unit_power_max_dbm": 20.0,
            "outage_threshold_db": -6.7,  # SINR that LTE's most robust format (CQI 1) needs
            "harq_attempts": 4,  # LTE's usual limit
            "transport_block_bits": 1e5,  # order of the largest LTE transport block
            "rate_law": "mean",  # or "ergodic": averaged over fading inside the round
        }
    )
    config.payload = ml_collections.ConfigDict(
        {
            "activation_number_bits": 16,  # half precision on the links
            "parameter_number_bits": 16,
            "token_bits": 16,  # targets travel as token numbers
            # Share of the parameters that is trained and travels; below 1 stands for adapters,
            # which are priced but not trained.
            "trained_fraction": 1.0,
        }
    )
    config.learning = ml_collections.ConfigDict(
        {
            # A run with evaluation.estimate_every_rounds estimates all numbers here; they stand
            # in its summary.json under the same names.
            "gradient_variance": 1.0,  # only its ratio to the next matters to the decision
            "gradient_heterogeneity": 0.5,
            # What the decision sees: "one_step" is (19), "local_steps" counts in that clusters
            # drift apart (docs/theory.md), which needs the rate times the smoothness.
            "bound": "one_step",
            # eta L_s, at most 1 / (4 local_steps); of "local_steps". What a run estimates is
            # meant for plain SGD: Adam's steps are not the rate times the gradient.
            "step_smoothness": 0.0,
        }
    )
    config.control = ml_collections.ConfigDict(
        {
            # A round as slow as the static pipeline's weighs as much as 3 rounds of debt. Debts
            # grow with it: at 10 some networks still miss a target after 300 rounds, for a
            # latency lower by less than 1 %.
            "v": 3.0,
            "control_unit_budget_j": 2.0,  # per round, mean over time; the cell's edge needs it
            # A cell-edge uplink costs what it costs: a control unit gets at least this many
            # times the least that its part can cost, or no policy could keep its budget on one
            # network in ten: losses, fading and interference come on top of that least.
            "control_unit_margin": 2.2,
            "device_budget_j": 0.8,  # above what most devices spend
            "divergence_ratio": 1.2,  # target over the divergence of a loss-free round, > 1
            # What policies are shown above the queues; see docs/system-model.md. Least prices: that
            # of energy keeps what buys nothing from being spent. Larger ones slow networks whose
            # reference is hopeless.
            "energy_reserve": 1e-4,
            "divergence_reserve": 1.0,
            # Of the debt that a fade leaves in any case: half is the mean price over the step.
            "certain_debt_weight": 0.5,
            # Both keep segments from changing in every round; 0 is off, as in the paper.
            "move_price": 0.0,  # of moving a whole encoder, in the units of v
            "hysteresis": 0.0,  # relative gain under which the layout stays
        }
    )
    config.policy = ml_collections.ConfigDict(
        {
            # Or one of "greedy", "static_pipeline", "titanic", "titanic_pipelined", "random",
            # "vanilla_fl", "splitfed"; see docs/policies.md.
            "name": "dssra",
            # Of policies that fix it, of the reference latency, and of the static pipeline that
            # dssra and greedy start from.
            "micro_batches": 8,
            "partitions": 3,  # of titanic
        }
    )
    config.model = ml_collections.ConfigDict(
        {
            "pretrained": "",  # BERT to start from: a folder as Hugging Face writes it
            "width": 128,
            "heads": 4,
            "feed_forward_width": 512,  # 4 x width, Vaswani et al. 2017
            "encoder_blocks": 6,  # L
            "decoder_blocks": 2,  # of translation; a deep encoder with few of them loses little
            "dropout_rate": 0.1,
            "label_smoothing": 0.1,
            "rematerialise": False,  # recompute activations: less memory, a third more work
            "compute_dtype": "float32",  # or "bfloat16": products of 16 bits, summed in 32
            "initial_deviation": 0.0,  # of fresh weights; 0 is 1 / sqrt(inputs), LeCun's law
        }
    )
    config.pipeline = ml_collections.ConfigDict(
        {
            # "sequential" scans the whole encoder; "vmapped" and "sharded" run each round's
            # segments, the latter on a device a stage. The result is the same, see
            # docs/pipeline.md.
            "backend": "sequential",
            "micro_batches": 1,  # of a pipeline that runs; the clock has its own, decided ones
        }
    )
    config.task = ml_collections.ConfigDict(
        {
            "kind": "translation",  # or "tagging" or "classification", both with BERT
            # Paths are taken as they stand, then below $COLLAPIPE_DATA; docs/file-formats.md.
            # Translation: one file of pairs, or "A|B" for two aligned ones.
            "corpus": "synthetic",
            "reverse": False,  # translate from the second column to the first
            "pairs": 20_000,  # in all, split by source sentence
            "validation_pairs": 200,
            "test_pairs": 500,
            "target_length": 28,
            # Tagging (CoNLL) and classification (CSV, TSV, JSON): a file a set.
            "train": "",
            "validation": "",  # classification may draw it from the training set instead
            "test": "",
            "samples": 0,  # sentences or texts to train on; 0 takes all
            "validation_samples": 0,  # drawn where there is no file of them
            "labels": 0,  # classes, or tags with "O", that the corpus has
            "domains": "",  # JSON {domain: [class, ...]}, the keys of a natural split
            "vocabulary": "",  # vocab.txt of WordPiece; none learns it from the training set
            "lowercase": True,
            # Rate at which WordPiece overlooks pieces of its vocabulary while training, so that
            # words fall into others in every pass (Hiraoka 2022); 0 is off. Of both.
            "piece_dropout": 0.0,
            # All.
            "vocabulary_size": 600,
            "source_length": 24,  # tokens; longer pairs are dropped and counted
            # "iid"; "dirichlet" over length of the source, type of entity, or class or domain;
            # "natural": a domain or type of entity belongs to one cluster.
            "split": "iid",
            "concentration": 0.5,  # of the Dirichlet split
        }
    )
    config.training = ml_collections.ConfigDict(
        {
            "rounds": 150,
            "local_steps": 4,  # H
            "batch": 16,  # B, samples of a cluster's mini-batch
            "micro_batch_choices": (1, 2, 4, 8, 16),  # divisors of the batch
            # "sgd", "momentum" or "adam", which Transformers want.
            "client_optimizer": "adam",
            "decoder_optimizer": "adam",
            "client_learning_rate": 2e-3,
            # Few clusters meet a rare token, and averaging divides its step by all N of them
            # (Ding et al. 2020): a factor of N on the embedding's steps makes up for it. 0 is
            # the number of copies that are averaged, 1 leaves the steps as they are.
            "embedding_rate_factor": 0.0,
            "decoder_learning_rate": 2e-3,
            # Lost by itself is each "micro_batch", as (17) has it; "round": one draw takes all
            # of a cluster's in a round, or none.
            "erased_together": "micro_batch",
            # Survivors make up for their own chance of "survival", which leaves gradients
            # unbiased; "pooled" averages all survivors alike and favours good links.
            "survivor_weight": "survival",
            "schedule": "cosine",  # or "constant", "inverse_sqrt"
            "warmup_steps": 80,  # local steps; Adam on a fresh Transformer needs some
            "clip_norm": 1.0,  # usual for Transformers; 0 is off
            # With rate 1 federated averaging; "momentum" or "adam" is FedOpt (Reddi et al. 2021).
            "server_optimizer": "sgd",
            "server_learning_rate": 1.0,
        }
    )
    config.evaluation = ml_collections.ConfigDict(
        {
            "every_rounds": 30,
            # Constants of the convergence bound at the model, of 8 mini-batches a cluster: as
            # much work as about 10 rounds of 4 local steps. 0 is never.
            "estimate_every_rounds": 0,
            "beams": 4,  # of a second final score; 1 leaves it at the greedy one
            "length_penalty": 0.6,  # Wu et al. 2016
        }
    )
    config.checkpoint_every_rounds = 30
    return config
