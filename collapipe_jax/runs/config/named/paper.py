"""The comparison of the paper's kind: BERT-base over 4 clusters of 5 boards.

    collapipe compare --config=paper --rounds=100 --realisations=64 --workdir=runs/paper

docs/results.md has its table. Parameters are those of default.py, each with its
source or as our choice, with the workload of BERT-base. Two were chosen after a first look at
results: budgets, since nobody can keep those of default.py, made for a tiny model; and the share of
memory, see below.

``paper:rich`` gives training the whole board, which no board can.

**Memory.** The operating system of a Jetson Nano takes 0.3 to 0.5 GB without a desktop and 1.5 GB
with one, and CUDA with its libraries 2 GB [1]. PyTorch grows by 1.7 GB of main memory, which a
Jetson shares with its GPU, at its first convolution [2]. Of the 4 GB, 3.9 are visible: 0.4 to 1.6
GB are left, a share of 0.1 to 0.4. A TX2 of 8 GB has 6.1 GB free under its desktop [3]: 0.5 of it
is left. A desktop takes 0.8 GB [4], so 0.6 without. One share holds for all boards and has to be
there on the smallest: 0.25 is the middle of its range. It is hard on boards of 8 GB.
With 0.25 a board of 4 GB does not hold the whole model, as the paper supposes of all. One of 8 GB
does if it accumulates gradients. Under 0.2 two clusters in five hold no encoder.
``configs/sweeps.py:memory`` sweeps the share.

[1] github.com/microsoft/onnxruntime/issues/4259, [2] github.com/pytorch/pytorch/issues/12873,
[3] github.com/NVIDIA-AI-IOT/tf_to_trt_image_classification/issues/5,
[4] github.com/dusty-nv/jetson-containers, docs/setup.md.

``paper:transformer`` has the workload of Transformer-base translation, and ``paper:lowband`` makes
moving parameters most of a round: every pipeline policy then waits for the same upload, and what
can be saved on devices and their links is a small part of it. ``paper:reuse`` has neighbours on the
same carrier, so interference is 10 times stronger at the base station and 400 times at the nodes.
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config

VARIANTS = ("", "rich", "transformer", "lowband", "reuse")
# docs/system-model.md, section 2: 7 dB over thermal noise, and six base stations at 1 km.
REUSE = {"radio.d2e_interference_w": 1e-12, "radio.downlink_interference_w": 4e-11}


def get_config(variant: str = "") -> Config:
    """BERT-base, batches of 32 sequences of 128 tokens, or a variant."""
    config = default.get_config()
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
