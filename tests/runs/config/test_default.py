"""Every key is described, and its default keeps what it says."""

import re

import pytest
from flax.traverse_util import flatten_dict
from support.changed_keys import KEYS, TINY, changed

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import quantities, unit_of
from collapipe_jax.edge.system import RadioParams
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.checks import check_config
from collapipe_jax.runs.config.files import read_config

DESCRIBED = flatten_dict(default.KEYS, sep=".")


def test_the_defaults_are_those_of_the_table():
    assert {name: key.default for name, key in DESCRIBED.items()} == KEYS
    assert check_config(default.get_config()) == default.get_config()


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_key_says_what_it_is(name):
    quantity = DESCRIBED[name].quantity
    assert quantity.meaning
    assert quantity.shape == ""
    assert not quantity.meaning.endswith(".")
    suffix = unit_of(name.rpartition(".")[2])
    assert quantity.unit.startswith(suffix)  # such as J per round


def test_a_level_has_the_meaning_of_its_linear_quantity():
    power = DESCRIBED["radio.bs_power_dbm"].quantity
    linear = quantities(RadioParams)["bs_power_w"]
    assert (power.meaning, power.symbol) == (linear.meaning, linear.symbol)
    assert (linear.unit, linear.bounds) == ("W", ">= 0")
    assert (power.unit, power.bounds) == ("dBm", ">= -300 and <= 300")


def test_a_key_may_be_narrower_than_its_field():
    assert DESCRIBED["radio.d2d_activity"].quantity.bounds == ">= 0 and <= 1"
    assert quantities(RadioParams)["d2d_activity"].bounds == ">= 0"


@pytest.mark.parametrize(("old", "new"), default.RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(old, new):
    assert new in KEYS
    config = changed(old, KEYS[new])
    with pytest.raises(InputError, match=re.escape(f"{old} = ")) as found:
        check_config(config)
    assert found.value.remedy == f"Use {new}"
    with pytest.raises(InputError) as found:
        read_config("default", {old: 1.0})
    assert (found.value.key, found.value.remedy) == (old, f"Use {new}")


def test_a_message_says_what_the_number_is():
    with pytest.raises(InputError) as found:
        check_config(changed("control.divergence_ratio", 0.5, TINY))
    assert "over the divergence of a round without losses" in found.value.problem
    assert found.value.remedy == "Give a number > 1, like 1.2"
