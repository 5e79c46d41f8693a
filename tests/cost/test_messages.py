"""Messages of the solver against the channel's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collapipe_jax.cost.messages import message_loss, sinr_at_hazard
from support.random_problems import random_problems

from collapipe_jax.network.channel import transport_block_hazard


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("attempts", [1, 3, 4])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-8), (np.float32, 2e-5)])
def test_losses_and_their_fall_are_those_of_the_channel(attempts, dtype, error):
    radio = jax.tree.map(lambda leaf: leaf[0], random_problems(1, 1, 1, 1).radio)
    radio = radio.replace(
        outage_threshold=dtype(radio.outage_threshold), harq_attempts=jnp.int32(attempts)
    )
    sinr = np.logspace(-4, 6, 2001).astype(dtype)
    loss = message_loss(radio, sinr)
    assert loss.hazard.dtype == loss.fall.dtype == dtype
    wide = radio.replace(outage_threshold=np.float64(radio.outage_threshold))

    def hazard(log_sinr):
        return transport_block_hazard(wide, jnp.exp(log_sinr))

    logs = np.log(sinr.astype(float))
    np.testing.assert_allclose(loss.hazard, hazard(logs), rtol=error, atol=0.1 * error)
    fall = -jax.vmap(jax.grad(hazard))(logs)
    np.testing.assert_allclose(loss.fall, fall, rtol=10 * error, atol=error)


@pytest.mark.parametrize("attempts", [1, 4])
def test_a_hazard_is_met_at_its_sinr(attempts):
    radio = jax.tree.map(lambda leaf: leaf[0], random_problems(1, 1, 1, 1).radio)
    radio = radio.replace(harq_attempts=jnp.int32(attempts))
    hazard = np.logspace(-4, 1, 200)
    reached = transport_block_hazard(radio, sinr_at_hazard(radio, hazard))
    np.testing.assert_allclose(reached, hazard, rtol=1e-6)
