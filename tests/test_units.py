import math

import pytest

from collapipe_jax.units import (
    bytes_to_mib,
    db_to_linear,
    dbm_to_w,
    gib_to_bytes,
)


@pytest.mark.parametrize(("ratio_db", "ratio"), [(0, 1), (10, 10), (3, 1.995262), (-174, 3.98e-18)])
def test_decibels_are_of_power(ratio_db, ratio):
    assert db_to_linear(ratio_db) == pytest.approx(ratio, rel=1e-3)


def test_watts_from_dbm():
    assert dbm_to_w(30) == pytest.approx(1)
    assert dbm_to_w(23) == pytest.approx(0.1995, rel=1e-3)
    assert dbm_to_w(-math.inf) == 0


def test_sizes():
    assert gib_to_bytes(4) == 4294967296
    assert bytes_to_mib(3 * 1048576) == 3
