"""Sizes that no memory of this machine holds are refused before anything is made of them."""

import math
import os
from collections.abc import Mapping

from collapipe_jax.core.errors import InputError, Known, Step
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_parameters

_PAIR_BYTES = 200  # of a synthetic pair of sentences, as Python holds it


def check_array(what: str, sizes: Mapping[str, int], entries: int | None = None) -> None:
    """Refuse an array that is larger than the memory of this machine.

    Args:
      what: what it holds.
      sizes: what its size depends on, by key; the largest one is named.
      entries: of 4 bytes each; the product of the sizes by default.

    Raises:
      InputError: naming the key of the largest size.
    """
    needed = NUMBER_BYTES * (math.prod(sizes.values()) if entries is None else entries)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        key = max(sizes, key=lambda name: sizes[name])
        problem = f"{what} would take {needed / 2**30:.3g} GiB, of {there / 2**30:.3g} there are"
        raise InputError(key, sizes[key], problem, "Lower it")


def check_network_memory(fine: Known, step: Step) -> None:
    """Refuse networks whose gains, or whose partitions, have no room."""
    sizes = {name: fine[name] for name in ("network.clusters", "network.devices")}
    nodes = fine["network.clusters"] * (fine["network.devices"] + 1)
    with step():
        check_array("gains between all nodes", sizes, nodes**2)
    with step():
        sizes |= {"model.encoder_blocks": fine["model.encoder_blocks"]}
        check_array("partitions of all clusters", sizes)


def check_training_memory(fine: Known, step: Step) -> None:
    """Refuse training whose texts of a round, or whose model, have no room."""
    with step():
        texts = ("training.local_steps", "training.batch", "network.clusters", "task.source_length")
        check_array("the texts of a round", {name: fine[name] for name in texts})
    with step():
        names = ("model.width", "model.feed_forward_width", "model.encoder_blocks")
        sizes = {name: fine[name] for name in names}
        width, inner, blocks = sizes.values()
        check_array("the encoder", sizes, blocks * block_parameters(width, inner))
    with step():
        rows = {name: fine[name] for name in ("task.vocabulary_size", "model.ngram_buckets")}
        check_array("the table of tokens", rows, sum(rows.values()) * fine["model.width"])
    with step():
        if fine["task.corpus"] == "synthetic" and not fine["task.train"]:
            pairs = {"task.pairs": fine["task.pairs"]}
            check_array("the corpus", pairs, pairs["task.pairs"] * _PAIR_BYTES // NUMBER_BYTES)
