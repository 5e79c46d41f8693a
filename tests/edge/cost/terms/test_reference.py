"""Terms of a round beside the reference that is written with loops."""

import copy

import numpy as np
import pytest
from support.against_reference import assert_equal_to_reference, base_case, flat
from support.random_networks import rows_section, secure_section, signalling_section
from support.reference_cost import reference_cost

SECTIONS = {
    "secure_aggregation": secure_section(),
    "signalling": signalling_section(),
    "embedding_rows": rows_section(),
}
KEYS = [(section, key) for section, numbers in SECTIONS.items() for key in numbers]


def case_with(section):
    network, decision = copy.deepcopy(base_case())
    network[section] = copy.deepcopy(SECTIONS[section])
    network["compute"]["receive_power_w"] = 0.6
    return network, decision


@pytest.mark.parametrize(("section", "key"), KEYS)
@pytest.mark.usefixtures("x64")
def test_every_number_counts_where_the_reference_says(section, key):
    network, decision = case_with(section)
    before = flat(reference_cost(network, decision))
    network[section][key] *= 1.37
    after = flat(assert_equal_to_reference(network, decision))
    assert not np.allclose(before, after, rtol=1e-7, atol=0)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.usefixtures("x64")
def test_a_cluster_that_sits_out_takes_no_part(section):
    network, decision = case_with(section)
    decision["segments"][2] = 0
    decision["d2d_share"][2] = 0
    assert_equal_to_reference(network, decision)
