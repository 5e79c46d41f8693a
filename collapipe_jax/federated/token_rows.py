"""Federated submodel averaging: a token's row is averaged over the clients that met the token.

Plain averaging divides the step of a token's embedding by all clients where a single one met the
token, while all of them step a parameter of the encoder.

Source: Ding et al. 2109.07704, which counts the clients that ever meet a token; here those of the
round count.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.federated.rules import Rules
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import SplitModel


def meetings(
    rules: Rules, model: SplitModel, params: Params, ids: Int[Array, "H N ..."]
) -> Bool[Array, "N V"] | None:
    """``met_tokens`` of a round, or None where all rows are averaged plainly."""
    table = params["embedding"].get(model.token_table)
    if rules.embedding_rate_factor is None or table is None:
        return None
    return met_tokens(ids, len(table))


def met_tokens(ids: Int[Array, "H N ..."], rows: int) -> Bool[Array, "N V"]:
    """Which of ``rows`` tokens every client meets in a round, erased or not.

    A number outside the vocabulary is clamped to its end, as where it is looked up.
    """
    own = jnp.moveaxis(ids, 1, 0).reshape(ids.shape[1], -1)
    none = jnp.zeros(rows, bool)
    return jax.vmap(lambda met: none.at[met].set(True, mode="clip"))(own)


def row_factors(
    met: Bool[Array, "N V"], shares: Float[Array, " N"], factor: Any
) -> Float[Array, " V"]:
    """What the mean step of every token's row is multiplied by.

    The factor 0 is ``1 / sum_n shares_n`` over the clients that met the token, which makes the
    step their own weighted mean. A row that nobody met moves by moments of earlier rounds alone;
    it counts as met by one client of mean share. Any other factor is that of all rows, and 1 is
    plain averaging.
    """
    share = shares @ met.astype(shares.dtype)
    nobody = jnp.maximum((shares > 0.0).sum(), 1).astype(share.dtype)
    by_clients = jnp.where(share > 0.0, 1.0 / jnp.where(share > 0.0, share, 1.0), nobody)
    return jnp.where(factor == 0.0, by_clients, factor)


def scale_rows(params: Params, table: str, factors: Float[Array, " V"]) -> Params:
    """Parameters with the rows of a table of the embedding multiplied."""
    embedding = params["embedding"]
    scaled = factors[:, None] * embedding[table]
    return {**params, "embedding": {**embedding, table: scaled}}
