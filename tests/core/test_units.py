import math

import pytest

from collapipe_jax.core.quantity import (
    bytes_to_mib,
    db_to_linear,
    gib_to_bytes,
    linear_name,
    to_linear,
)


@pytest.mark.parametrize(("ratio_db", "ratio"), [(0, 1), (10, 10), (3, 1.995262), (-174, 3.98e-18)])
def test_decibels_are_of_power(ratio_db, ratio):
    assert db_to_linear(ratio_db) == pytest.approx(ratio, rel=1e-3)


def test_watts_from_dbm():
    assert to_linear("power_dbm", 30) == pytest.approx(1)
    assert to_linear("noise_dbm_per_hz", 23) == pytest.approx(0.1995, rel=1e-3)
    assert to_linear("power_dbm", -math.inf) == 0


def test_a_name_goes_with_its_unit():
    names = ("power_dbm", "noise_dbm_per_hz", "gap_db", "power_w", "share")
    assert [linear_name(name) for name in names] == [
        "power_w",
        "noise_w_per_hz",
        "gap",
        "power_w",
        "share",
    ]
    assert to_linear("gap_db", 10) == pytest.approx(10)
    assert to_linear("power_w", 10) == to_linear("share", 10) == 10


def test_sizes():
    assert gib_to_bytes(4) == 4294967296
    assert bytes_to_mib(3 * 1048576) == 3
