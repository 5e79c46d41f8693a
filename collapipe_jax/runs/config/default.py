"""Every key of a configuration: its default, its quantity, and the reason for the default.

Keys that name the same number as a field of a struct take meaning and bounds from there. Types,
checks of ranges and docs/reference/configuration.md follow from this table.
"""

from typing import Any

import jax
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from collapipe_jax.core.trackers import NO_TRACKER, TRACKERS
from collapipe_jax.edge.cost.convergence import Learning
from collapipe_jax.edge.cost.problem import SecureExchange, Signalling, SwitchingParams
from collapipe_jax.edge.cost.terms import ROWS
from collapipe_jax.edge.network.channel import DynamicsParams
from collapipe_jax.edge.network.devices import DeviceParams
from collapipe_jax.edge.network.mobility import MobilityParams
from collapipe_jax.edge.network.propagation import PropagationParams, TopologyParams
from collapipe_jax.edge.policies.alternating import KNOBS
from collapipe_jax.edge.policies.client_shares import SHARES, SPLITS
from collapipe_jax.edge.policies.registry import MODES, POLICIES, ROUTES, RUN_POLICIES
from collapipe_jax.edge.queues import EffectiveQueueParams
from collapipe_jax.edge.system import ControlParams, RadioParams
from collapipe_jax.runs.config.keys import LEARNING_KEYS, Key, key, own_seed, section

Config = Any
"""A ConfigDict; a type checker cannot tell a section of it from a value."""

KEYS: dict[str, Any] = {
    **section(
        seed=key(0, "seed of everything random that has no seed of its own"),
        checkpoint_every_rounds=key(30, "rounds from checkpoint to checkpoint", "> 0"),
        tracker=key(
            NO_TRACKER,
            "where the metrics of every round go besides the workdir",
            choices=TRACKERS,
            own=True,
        ),
    ),
    "network": section(
        TopologyParams,
        seed=own_seed("network, its fading and its devices"),
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
        es_memory_bytes=key(80e9, why="one A100 of 80 GB, by NVIDIA's data sheet"),
        block_overhead_s=key(0.002, why="our estimate: tens of kernel launches on a board"),
        link_overhead_s=key(0.01, why="our estimate: scheduling request and grant in LTE"),
        idle_power_w=key(
            0.0,
            why="the energy of an operation, from a whole board, contains what it idles meanwhile",
        ),
        receive_power_w=key(
            0.0,
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
            bounds=">= 0 and <= 1",
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
        update_number_bits=key(
            0,
            "bits of a number of an update, from 3 on; what goes up is rounded at random, in "
            "training and in prices (docs/system-model.md, section 17). 0 rounds nothing",
            ">= 0 and <= 16",
            symbol="b_U",
            why="off, as in the paper; QSGD has 4 and 8",
        ),
        error_feedback=key(
            True,
            "a party adds what rounding leaves of its update to the next one; it keeps a number "
            "more of every parameter",
            why="it loses less with few bits; rounding is unbiased without it, and needs no memory",
        ),
        embedding_rows=key(
            "all",
            "rows of the embedding's table of tokens that travel: `all`, or those `touched`, which "
            "the texts of a round read (docs/system-model.md, section 21)",
            choices=ROWS,
            why="as published; `touched` tells the edge server which rows a party reads",
        ),
        row_law_scale=key(
            44.0,
            "scale of Heaps' law: tokens to this many times a power read different rows; read "
            "with `touched` where no texts are known",
            "> 0",
            symbol="k_V",
            why="Reuters-RCV1 (Manning, Raghavan and Schütze 2008, section 5.1.1); 30 to 100 are "
            "typical",
        ),
        row_law_exponent=key(
            0.49,
            "exponent of Heaps' law",
            "> 0 and <= 1",
            symbol=r"\beta_V",
            why="as `row_law_scale`; 0.4 to 0.6 are typical",
        ),
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
        name=key("dssra", "policy that decides (docs/policies.md)", choices=RUN_POLICIES, own=True),
        modes=key(
            MODES,
            "policies among which the first round of best_mode chooses",
            choices=POLICIES,
            own=True,
            why="pipelines, split learning of devices and of control units, federated averaging",
        ),
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
            why="off, as a pipeline without optimisation; on, at its best number",
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
            "blocks on a client of a split model, if its memory holds them: a number, `half`, or "
            "`best`, with the least latency of the round",
            symbol="L_c",
            why="client and server share the encoder; `best` makes the fastest rival",
        ),
        client_micro_batches=key(
            "best",
            "micro-batches of a client's part of a split model, which pass through client, links "
            "and edge server at once: a number, or `best` of the `training.micro_batch_choices`, "
            "with the least latency of the round",
            symbol="M",
            why="a rival at its best (Liu et al. 2025); 1 is SplitFed as published",
        ),
        shares=key(
            "min_max",
            "shares of the D2E band of data-parallel policies: `equal`, or `min_max`, with which "
            "the slowest client is as fast as it can be",
            choices=SHARES,
            why="a rival at its best; the pipelines of dssra optimise theirs, too",
        ),
        split=key(
            "min_max",
            "parts of a mini-batch of data-parallel policies: `even`, or `min_max`, with which the "
            "slowest client of a cluster is as fast as it can be",
            choices=SPLITS,
            why="a rival at its best: boards differ 5 times in speed",
        ),
        accumulation=key(
            "best",
            "pieces of a client's part, which adds up their gradients and keeps the activations of "
            "one; of data-parallel policies with whole models: a number, or `best`, the least with "
            "which it fits memory",
            symbol="A",
            why="a rival at its best; more pieces need less memory and launch more passes",
        ),
        clients=key(
            "best",
            "devices of a cluster that train under selected_fl: a number, or `best`, with which "
            "the round keeps all limits and ends first",
            why="a rival at its best",
        ),
        broadcast=key(
            True,
            "data-parallel policies send parameters down to all clients in one transmission",
            why="the parameters are the same for all; multicast is part of LTE (eMBMS)",
        ),
        routes=key(
            "control_units",
            "who talks to the base station in a pipeline of static_pipeline, titanic, "
            "titanic_pipelined or alternating: `control_units`, or `gateways`, the "
            "likeliest node of every cluster, with parameters by broadcast; dssra_wide decides it",
            choices=ROUTES,
            why="as in the paper; docs/system-model.md, section 18",
        ),
        deadline=key(
            0.0,
            "latency after which a policy that ignores the channel leaves a cluster or client out, "
            "in reference latencies, as below the outage SINR; 0 is off",
            why="off: every cluster that can run takes part",
        ),
    ),
    "signalling": section(
        Signalling,
        report_bits=key(0.0, why="off: the paper counts activations and parameters alone"),
        grant_bits=key(0.0, why="off, as reports"),
    ),
    "secure_aggregation": section(
        SecureExchange,
        enabled=key(
            False,
            "the edge server learns the weighted mean of updates and no single one; trained and "
            "priced (docs/explanation/secure-aggregation.md)",
            why="off, as in the paper",
        ),
        ring_bits=key(
            32,
            "bits of an entry of a masked vector; steps of the quantiser are `clip` over "
            "2^(`ring_bits` - 2)",
            ">= 16 and <= 32",
            symbol="b",
            why="as Flower's SecAgg+; with 18 steps are 2^-16 of `clip`, and "
            "an entry is little longer than a parameter of 16 bits",
        ),
        clip=key(
            1.0,
            "largest change of a parameter in a round; larger ones are cut, and counted",
            "> 0",
            why="Adam's steps are near the rate: 4 of them at 0.002 change a weight by 0.008",
        ),
        threshold=key(
            0.66,
            "share of a round's parties that has to answer, two at least; with fewer a round fails",
            "> 0 and <= 1",
            why="Bonawitz et al. 2017 tolerate that a third drops out",
        ),
        dropout_probability=key(
            0.0, why="off: in the model parameters travel reliably, and no device fails"
        ),
        secret_bits=key(
            256.0, why="X25519, and shares of its secrets, as in Bonawitz et al. 2017, section 7"
        ),
        party_mask_bytes_per_s=key(
            1e9,
            why="one core of ARMv8 with AES instructions: 1.14e9 by `openssl speed` (sbc-bench), "
            "under a cycle a byte on Cortex-A57 by Linux's own measurement",
        ),
        server_mask_bytes_per_s=key(
            5e9, why="one core of x86 with AES instructions, 0.64 cycles a byte at 3.2 GHz"
        ),
    ),
    **LEARNING_KEYS,
}
"""Every key by name, those of a section in a dictionary of their own."""

_FLAT: dict[str, Any] = dict(flatten_dict(KEYS, sep="."))
DEFAULTS = {name: each.default for name, each in _FLAT.items()}
"""Default of every key, as ``"section.key"``."""

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
