from itertools import product as product_of

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from collapipe_jax.learning.federated.secure_aggregation import (
    GENERATOR,
    PRIME,
    inverse,
    power,
    product,
    random_numbers,
    reconstruct,
    share,
)

SECRETS = jnp.array([[0, 1, 40_000], [PRIME - 1, 17, 5]], jnp.uint32)
HOLDERS, KEY = 5, jax.random.key(3)
make_shares = jax.jit(share, static_argnames="holders")


def test_the_modulus_is_prime_and_the_generator_a_primitive_root():
    assert all(PRIME % divisor for divisor in range(2, 256))
    order = PRIME - 1
    factors = [q for q in range(2, order + 1) if order % q == 0 and all(q % r for r in range(2, q))]
    assert all(pow(GENERATOR, order // factor, PRIME) != 1 for factor in factors)


def test_field_operations_are_those_of_python():
    rng = np.random.default_rng(0)
    base = [0, 1, PRIME - 1, *rng.integers(0, PRIME, 50).tolist()]
    exponent = [PRIME - 1, 0, 65_535, *rng.integers(0, 2**16, 50).tolist()]
    found = power(jnp.array(base, jnp.uint32), jnp.array(exponent, jnp.uint32))
    assert found.tolist() == [pow(b, e, PRIME) for b, e in zip(base, exponent, strict=True)]
    found = inverse(jnp.array(base[1:], jnp.uint32))
    assert found.tolist() == [pow(b, -1, PRIME) for b in base[1:]]
    expected = 1
    for number in base[1:]:
        expected = expected * number % PRIME
    assert product(jnp.array(base[1:], jnp.uint32)) == expected


@pytest.mark.parametrize("threshold", [1, 3, HOLDERS])
def test_shares_lie_on_a_polynomial_of_the_thresholds_degree(threshold):
    shares = np.asarray(make_shares(KEY, SECRETS, jnp.array(threshold), holders=HOLDERS)).astype(
        object
    )
    drawn = np.asarray(random_numbers(KEY, (HOLDERS - 1, *SECRETS.shape))).astype(object)
    for place in range(1, HOLDERS + 1):
        terms = (drawn[j] * place ** (j + 1) for j in range(threshold - 1))
        expected = (np.asarray(SECRETS).astype(object) + sum(terms)) % PRIME
        assert (shares[:, place - 1] == expected).all()


def test_any_shares_from_the_threshold_on_give_the_secrets_back():
    held = np.array(list(product_of([False, True], repeat=HOLDERS)))
    recover = jax.jit(jax.vmap(reconstruct))
    for threshold in (2, 3, HOLDERS):
        shares = make_shares(KEY, SECRETS, jnp.array(threshold), holders=HOLDERS)
        kept = jnp.where(held[:, None, :, None], shares[None], 12_345)  # others are not read
        is_same = (recover(kept, held) == SECRETS[None]).all((1, 2))
        np.testing.assert_array_equal(is_same, held.sum(1) >= threshold)


def test_fewer_shares_than_the_threshold_are_uniform_whatever_the_secret():
    """Both of two shares with threshold 3, jointly: 64 equally likely cells."""
    for secret in (0, 31_000):
        secrets = jnp.full((20_000, 1), secret, jnp.uint32)
        shares = np.asarray(share(jax.random.key(secret), secrets, 3, HOLDERS))[..., 0]
        cells = (shares[:, [1, 4]] * 8 // PRIME).astype(int)
        counts = np.bincount(cells[:, 0] * 8 + cells[:, 1], minlength=64)
        assert chisquare(counts).pvalue > 1e-3
