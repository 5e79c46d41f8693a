"""Rules of rounds on quadratics ``F_n(w) = w A_n w / 2 - b_n w``, whose optima are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.federated.aggregation import participant_shares, participation_of
from collapipe_jax.learning.federated.learner import (
    Method,
    StepGradients,
    initial_state,
    learn_round,
)
from collapipe_jax.learning.federated.optimizers import (
    Optimizers,
    Rules,
    bytes_held,
    make_optimizer,
    numbers_per_parameter,
    updated_average,
)

pytestmark = pytest.mark.usefixtures("x64")

CLIENTS, SIZE, RATE = 3, 2, 0.0625
WEIGHTS = np.array([0.5, 0.2, 0.3])
RNG = np.random.default_rng(3)
FACTORS = RNG.normal(size=(CLIENTS, SIZE, SIZE))
HESSIANS = FACTORS @ FACTORS.transpose(0, 2, 1) + 0.5 * np.eye(SIZE)
SLOPES = 3.0 * RNG.normal(size=(CLIENTS, SIZE))
OPTIMUM = np.linalg.solve(np.tensordot(WEIGHTS, HESSIANS, 1), WEIGHTS @ SLOPES)
EVERYONE = (True,) * CLIENTS


def quadratic_gradients(copies, decoder, base, batch, key):
    del base, batch, key
    gradient = jnp.einsum("nij,nj->ni", HESSIANS, copies["w"]) - SLOPES
    nothing = jnp.zeros(CLIENTS)
    return StepGradients({"w": gradient}, decoder, nothing, nothing + 1.0, jnp.zeros(()))


class Quadratics:
    """Rounds of clients with quadratic objectives, from ``w = 0``."""

    def __init__(self, client="sgd", server="sgd", **rules):
        average = make_optimizer(server, 1.0)
        own = make_optimizer(client, RATE)
        optimizers = Optimizers(client=own, decoder=own, server=average).transformations
        self.method: Method = Method(optimizers, Rules(**rules))
        self.state = initial_state({"w": jnp.zeros(SIZE)}, None, {}, self.method, CLIENTS)
        self._round = jax.jit(self._one, static_argnames="steps")

    def _one(self, state, present, index, steps):
        weights = jnp.asarray(WEIGHTS)
        shares = participant_shares(weights, present)
        participation = participation_of(weights, present, shares, {})
        batches = jnp.zeros((steps, CLIENTS, 1))
        key = jax.random.key(0)
        return learn_round(
            quadratic_gradients, state, participation, self.method, batches, key, index
        )[0]

    def round(self, present=EVERYONE, steps=4, index=0):
        self.state = self._round(self.state, jnp.array(present), jnp.int32(index), steps)
        return np.asarray(self.state.client["w"])


def descended(start, steps, correction=0.0, client=0):
    """Where a client gets to by plain descent."""
    w = np.array(start)
    for _ in range(steps):
        w = w - RATE * (HESSIANS[client] @ w - SLOPES[client] + correction)
    return w


def test_clients_of_fedprox_end_where_the_weighted_proximal_points_agree():
    """Enough local steps reach ``argmin F_n(w) + mu / 2 |w - w_global|^2``."""
    mu = 0.7
    runs = Quadratics(proximal_weight=mu)
    for _ in range(60):
        found = runs.round(steps=300)
    inverses = np.linalg.inv(HESSIANS + mu * np.eye(SIZE))
    mean = np.tensordot(WEIGHTS, inverses, 1)
    pulled = np.einsum("n,nij,nj->i", WEIGHTS, inverses, SLOPES)
    fixed = np.linalg.solve(np.eye(SIZE) - mu * mean, pulled)
    np.testing.assert_allclose(found, fixed, rtol=1e-7)
    averaged = np.einsum("n,nij,nj->i", WEIGHTS, np.linalg.inv(HESSIANS), SLOPES)
    assert np.linalg.norm(found - OPTIMUM) < np.linalg.norm(averaged - OPTIMUM)


def test_scaffold_ends_at_the_optimum_and_federated_averaging_does_not():
    averaging, scaffold = Quadratics(), Quadratics(control_variates=True)
    for _ in range(400):
        plain, corrected = averaging.round(steps=8), scaffold.round(steps=8)
    np.testing.assert_allclose(corrected, OPTIMUM, rtol=1e-8)
    assert np.linalg.norm(plain - OPTIMUM) > 0.05
    # Each variate is the gradient of its client's objective there, and their mean is none.
    own = np.einsum("nij,j->ni", HESSIANS, OPTIMUM) - SLOPES
    variates = scaffold.state.variates
    np.testing.assert_allclose(variates.client_variates["w"], own, rtol=1e-6)
    np.testing.assert_allclose(variates.server_variate["w"], 0.0, atol=1e-7)


def test_control_variates_are_option_two_and_wait_for_those_who_sit_out():
    runs, steps = Quadratics(control_variates=True), 3
    runs.round(steps=steps)
    start = np.asarray(runs.state.client["w"])
    own, common = (np.asarray(part["w"]) for part in runs.state.variates)
    present = np.array([True, False, True])
    after = runs.round(tuple(present), steps=steps)
    ends = np.array([descended(start, steps, common - own[n], n) for n in range(CLIENTS)])
    changed = own - common + (start - ends) / (steps * RATE)
    expected = np.where(present[:, None], changed, own)
    shares = np.where(present, WEIGHTS, 0.0) / 0.8
    np.testing.assert_allclose(after, shares @ ends, rtol=1e-10)
    variates = runs.state.variates
    np.testing.assert_allclose(variates.client_variates["w"], expected, rtol=1e-10)
    # With all weights: those who sit out have changed nothing.
    server = common + WEIGHTS @ (expected - own)
    np.testing.assert_allclose(variates.server_variate["w"], server, rtol=1e-10)


def test_the_first_round_of_scaffold_is_federated_averaging():
    plain, corrected = Quadratics(), Quadratics(control_variates=True)
    np.testing.assert_array_equal(plain.round(), corrected.round())


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_averaged_moments_are_the_participants_mean_for_all(name):
    kept, averaged = Quadratics(name), Quadratics(name, client_moments="average")
    present = (True, False, True)
    shares = np.array([0.5, 0.0, 0.3]) / 0.8
    np.testing.assert_array_equal(kept.round(present), averaged.round(present))
    own = jax.tree.leaves(kept.state.client_optimizer)
    for before, after in zip(own, jax.tree.leaves(averaged.state.client_optimizer), strict=True):
        is_count = jnp.issubdtype(before.dtype, jnp.integer)
        expected = before.max() if is_count else np.tensordot(shares, before, 1)
        np.testing.assert_allclose(after, np.broadcast_to(expected, after.shape), rtol=1e-10)
    held = averaged.state
    averaged.round((False,) * CLIENTS)
    jax.tree.map(np.testing.assert_array_equal, averaged.state, held)


def test_reset_moments_make_every_round_the_first():
    runs, fresh = Quadratics("adam", client_moments="reset"), Quadratics("adam")
    fresh.state = fresh.state._replace(client={"w": jnp.asarray(runs.round())})
    np.testing.assert_array_equal(runs.round(), fresh.round())
    jax.tree.map(
        np.testing.assert_array_equal,
        runs.state.client_optimizer,
        Quadratics("adam").state.client_optimizer,
    )


def test_the_server_average_weighs_rounds_by_powers_of_its_decay():
    decay, found = 0.8, []
    runs, plain = Quadratics(server_average=decay), Quadratics()
    for index in range(5):
        found.append(runs.round(index=index))
        np.testing.assert_array_equal(found[-1], plain.round(index=index))
        powers = decay ** np.arange(index, -1, -1)
        expected = powers @ np.array(found) / powers.sum()
        np.testing.assert_allclose(runs.state.scored_params["w"], expected, rtol=1e-6)
    assert np.linalg.norm(found[-1] - expected) > 1e-3


def test_the_average_starts_at_the_first_round_and_decay_zero_is_the_last():
    start, first = {"w": jnp.full(2, 9.0)}, {"w": jnp.array([1.0, 2.0])}
    for decay, index in ((0.99, 0), (0.0, 7)):
        got = updated_average(start, first, decay, index)
        np.testing.assert_allclose(got["w"], first["w"], rtol=1e-5)


def test_without_a_rule_a_state_has_no_leaf_for_it():
    plain = Quadratics("adam").state
    assert plain.variates is None
    assert plain.average is None
    assert plain.residuals is None
    assert plain.scored_params == plain.params


@pytest.mark.parametrize(
    ("changes", "sent", "held"),
    [
        ({}, 1, 16),
        ({"client_moments": "average"}, 3, 16),
        ({"client_moments": "average", "client_optimizer": "momentum"}, 2, 12),
        ({"client_moments": "average", "client_optimizer": "sgd"}, 1, 8),
        ({"client_moments": "reset"}, 1, 16),
        ({"control_variates": True, "client_optimizer": "sgd"}, 2, 20),
        ({"proximal_weight": 0.1}, 1, 20),
    ],
)
def test_what_travels_and_is_held_is_counted(changes, sent, held):
    training = {"client_optimizer": "adam", "client_moments": "keep", "proximal_weight": 0.0}
    training |= {"control_variates": False} | changes
    assert (numbers_per_parameter(training), bytes_held(training)) == (sent, held)
