"""English to German on Tatoeba sentence pairs, over 4 clusters with DSSRA deciding.

python -m experiments.train --config=configs/translation_tatoeba.py --workdir=runs/tatoeba
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """The configuration of the real translation task."""
    config = default.get_config()
    config.task.update(
        {
            "corpus": "mt_tatoeba_deu_eng/deu.txt",
            "pairs": 30_000,
            "validation_pairs": 500,
            "test_pairs": 1_000,
            "vocabulary_size": 4_000,
        }
    )
    return config
