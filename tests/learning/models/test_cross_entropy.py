import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.models.layers import cross_entropy


def written_out(scores, targets, smoothing):
    log_p = jax.nn.log_softmax(scores)
    target = (1 - smoothing) * jax.nn.one_hot(targets, scores.shape[-1]) + (
        smoothing / scores.shape[-1]
    )
    return -(target * log_p).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradient_equal_the_written_out_form(x64, smoothing):
    scores = 5 * jax.random.normal(jax.random.key(0), (3, 4, 7))
    targets = jax.random.randint(jax.random.key(1), (3, 4), 0, 7)
    weight = jax.random.normal(jax.random.key(2), (3, 4))

    @jax.jit
    def both(scores):
        """Values and gradients of the two forms."""

        def weighted(scores, form):
            value = form(scores, targets, smoothing)
            return (weight * value).sum(), value

        slope = jax.grad(weighted, has_aux=True)
        return [slope(scores, form) for form in (cross_entropy, written_out)]

    (got, value), (expected, expected_value) = jax.device_get(both(scores))
    np.testing.assert_allclose(value, expected_value, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(got.sum(-1), 0.0, atol=1e-12)


def test_huge_scores_stay_finite():
    scores = jnp.array([[1e4, -1e4, 0.0]])
    value, gradient = jax.value_and_grad(lambda s: cross_entropy(s, jnp.array([1]), 0.1).sum())(
        scores
    )
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient[0], [1 - 0.1 / 3, -0.9 - 0.1 / 3, -0.1 / 3], rtol=1e-5)
