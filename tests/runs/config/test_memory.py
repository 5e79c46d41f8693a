import time

import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import check_array
from collapipe_jax.runs.config.experiment import check_experiment
from collapipe_jax.runs.config.files import read_config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("network.clusters", 10**9),
        ("network.devices", 10**9),
        ("model.encoder_blocks", 10**9),
        ("model.width", 10**9),
        ("training.batch", 2**30),
        ("training.local_steps", 10**9),
        ("task.pairs", 2 * 10**9),
        ("task.source_length", 10**9),
    ],
)
def test_sizes_beyond_memory_are_refused_at_once(key, value):
    start_s = time.monotonic()
    with pytest.raises(InputError) as told:
        check_experiment(read_config("quickstart", {key: value}))
    assert key in [error.key for error in told.value.errors]
    assert time.monotonic() - start_s < 5.0


def test_an_array_names_its_largest_size(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4, "SC_PHYS_PAGES": 100}[name])
    check_array("it", {"a": 10, "b": 10})
    with pytest.raises(InputError, match=r"b = 11: it would take .* GiB, of .* there are"):
        check_array("it", {"a": 10, "b": 11})
