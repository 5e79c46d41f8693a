"""Sweeps: policies side by side at several values of a key, by the name of the sweep.

    collapipe sweep --config=configs/sweeps.py:bandwidth --workdir=runs/bandwidth

On the networks of the configuration ``paper``, but for ``mobility`` on those of ``default``: their
rounds last about as long as dynamics.round_interval_s. Rounds of ``paper`` last minutes, in which a
pedestrian crosses the disc of its cluster several times: any walk would look alike there.
``sensitivity`` has choices that could have been made otherwise, ``conditions`` other surroundings
of the network, ``left_out`` what costs leave out by default. A number of clusters or devices is a
program of its own and takes minutes to compile.
"""

from typing import Any

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import REUSE, paper

_NANO, _TX2, _NX, _ORIN = "jetson_nano", "jetson_tx2", "jetson_xavier_nx", "jetson_orin_nano"


def get_config(name: str) -> Config:
    """The configuration that the points of a sweep change."""
    return default.get_config() if name == "mobility" else paper()


def get_sweep(name: str) -> dict[str, Any]:
    """Axis and points of a sweep; each point sets keys of the configuration."""
    return dict(zip(("axis", "log", "points"), SWEEPS[name], strict=True))


def _over(axis: str, key: str, values: tuple, unit: float = 1, log: bool = True) -> tuple:
    """A sweep of one key, whose values are given in multiples of a unit."""
    return axis, log, [(value, {key: value * unit}) for value in values]


def _payload(activation_bits: int, parameter_bits: int) -> dict[str, int]:
    keys = ("payload.activation_number_bits", "payload.parameter_number_bits")
    return dict(zip(keys, (activation_bits, parameter_bits), strict=True))


SWEEPS = {
    # The size of the network.
    "clusters": _over("Clusters", "network.clusters", (1, 2, 4, 8), log=False),
    "devices": _over("Devices per cluster", "network.devices", (2, 3, 5, 8), log=False),
    # The radio.
    "bandwidth": _over("D2E bandwidth [MHz]", "radio.d2e_bandwidth_hz", (5, 10, 20, 40, 80), 1e6),
    "d2d_bandwidth": _over(
        "D2D bandwidth [MHz]", "radio.d2d_bandwidth_hz", (2.5, 5, 10, 20, 40), 1e6
    ),
    "power": _over(
        "Largest D2E power [dBm]", "radio.d2e_power_max_dbm", (17, 20, 23, 26), log=False
    ),
    # The work.
    "blocks": _over("Encoder blocks", "model.encoder_blocks", (4, 8, 12, 24), log=False),
    "sequence": _over("Sequence length [tokens]", "task.source_length", (32, 64, 128, 256)),
    "micro_batches": (
        "Micro-batches of policies that fix them",
        True,
        [
            (count, {"policy.micro_batches": count, "policy.best_micro_batches": False})
            for count in (1, 2, 4, 8, 16, 32)
        ],
    ),
    "local_steps": _over("Local steps in a round", "training.local_steps", (1, 4, 16, 64)),
    "segments": _over("Segments of titanic", "policy.partitions", (1, 2, 3, 4, 5), log=False),
    # The constraints and their weight.
    "memory": _over("Memory share", "devices.memory_share", (0.17, 0.25, 0.35, 0.5, 1.0)),
    "budgets": _over(
        "Mean energy budget of a device [J]", "control.device_budget_j", (120, 240, 480, 960)
    ),
    "v": _over("V", "control.v", (0.3, 1, 3, 10, 30)),
    # How unlike the boards are, and how fast devices walk.
    "heterogeneity": (
        "Speed of the fastest board over the slowest",
        False,
        [
            (1.0, {"devices.kinds": (_NX,)}),
            (1.3, {"devices.kinds": (_TX2, _NX)}),
            (1.9, {"devices.kinds": (_TX2, _NX, _ORIN)}),
            (5.4, {"devices.kinds": (_NANO, _TX2, _NX, _ORIN)}),
        ],
    ),
    "mobility": _over(
        "Mean speed of devices, m/s",
        "dynamics.speed_m_per_s",
        (0.0, 0.5, 1.4, 5.0, 15.0),
        log=False,
    ),
    "sensitivity": (
        "Choice",
        False,
        [
            ("as in paper.py", {}),
            ("no interference", {"radio.d2d_activity": 0.0}),
            ("interference always", {"radio.d2d_activity": 1.0}),
            ("devices along a short tour", {"network.order": "tour"}),
            ("32-bit payloads", _payload(32, 32)),
            ("8-bit activations", _payload(8, 16)),
            # LoRA of rank 8 on all attention matrices of BERT-base: about 1 % of a block.
            ("adapters", {"payload.trained_fraction": 0.01}),
            ("1 local step", {"training.local_steps": 1}),
            ("16 local steps", {"training.local_steps": 16}),
            ("64 local steps", {"training.local_steps": 64}),
            ("80 MHz", {"radio.d2e_bandwidth_hz": 80e6}),
        ],
    ),
    "conditions": (
        "Condition",
        False,
        [
            ("as in paper.py", {}),
            # ``paper:reuse``
            ("neighbours on the same carrier", REUSE),
            ("D2D links with sight", {"propagation.d2d_path_loss": "tr36843_outdoor"}),
            ("clusters as unlike as measured", {"learning.gradient_heterogeneity": 0.03}),
            ("attempts without limit", {"radio.retransmissions": "reliable"}),
            ("one device in five absent", {"dynamics.availability": 0.8}),
        ],
    ),
    "left_out": (
        "Counted",
        False,
        [
            ("nothing", {}),
            ("attempts", {"radio.retransmissions": "counted"}),
            ("attempts without limit", {"radio.retransmissions": "reliable"}),
            ("half duplex", {"radio.duplex": "half"}),
            ("a watt to receive", {"devices.receive_power_w": 1.0}),
        ],
    ),
}
"""Axis, whether it is logarithmic, and points by name."""

VARIANTS = tuple(SWEEPS)
