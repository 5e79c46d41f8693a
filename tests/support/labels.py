"""Labels of the arrays on file, as any reader of ``.npz`` finds them."""

import json

import numpy as np


def labels(results, part):
    """Names of the ``axes`` and ``unit`` of every array of a part, by name."""
    with np.load(results.path(part)) as arrays:
        return json.loads(str(arrays["labels"]))
