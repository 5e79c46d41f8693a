"""How much the comparison of paper.py hangs on choices that could have been made otherwise.

python -m experiments.sweep --config=configs/sensitivity.py --workdir=runs/sensitivity
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Choice",
        "log": False,
        "points": [
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
        ],
    }


def _payload(activation_bits: int, parameter_bits: int) -> dict:
    return {
        "payload.activation_number_bits": activation_bits,
        "payload.parameter_number_bits": parameter_bits,
    }
