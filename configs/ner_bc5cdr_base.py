r"""BC5CDR with BERT-base, for a GPU.

    python -m experiments.train --workdir=runs/bc5cdr_base \
        --config=configs/ner_bc5cdr_base.py

starts from fresh weights, or with ``--config.model.pretrained=DIR`` from a folder of
bert-base-uncased. The result is in ``model/`` of the workdir, as Hugging Face lays it out. Only its
checks and its network have been run so far, no training.
"""

from ml_collections import ConfigDict

from configs import ner_bc5cdr
from configs.classification_clinc150_base import enlarge


def get_config() -> ConfigDict:
    """The small configuration's task at the size of BERT-base."""
    config = enlarge(ner_bc5cdr.get_config())
    config.task.source_length = 128
    config.training.update({"rounds": 200, "warmup_steps": 80})
    config.control.update({"control_unit_budget_j": 160.0, "device_budget_j": 480.0})
    return config
