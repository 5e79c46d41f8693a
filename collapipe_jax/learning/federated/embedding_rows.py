"""Federated submodel averaging: a row of a table is averaged over the clients that read it.

Plain averaging divides the step of a token's embedding by all clients where a single one met the
token, while all of them step a parameter of the encoder.

Source: Ding et al. 2109.07704, which counts the clients that ever meet a token; here those of the
round count.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.learning.federated.optimizers import Rules
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import WHOLE_TABLES

UNKNOWN = 0.0
"""Value of all rows that a client did not ask for, in its copy."""


def met_rows_by_table(
    rules: Rules, params: Params, rows_read: Mapping[str, Int[Array, "H N ..."]]
) -> dict[str, Bool[Array, "N V"]]:
    """``met_rows`` of a round by table; none where all rows travel and are averaged plainly."""
    if rules.embedding_rate_factor is None and not rules.touched_rows:
        return {}
    tables = params["embedding"]
    return {
        name: met_rows(ids, len(tables[name])) for name, ids in rows_read.items() if name in tables
    }


def met_rows(ids: Int[Array, "H N ..."], rows: int) -> Bool[Array, "N V"]:
    """Which of ``rows`` rows every client reads in a round, erased or not.

    A number beyond them is of no row.
    """
    own = jnp.moveaxis(ids, 1, 0).reshape(ids.shape[1], -1)
    none = jnp.zeros(rows, bool)
    return jax.vmap(lambda met: none.at[met].set(True, mode="drop"))(own)


def row_shares(met: Bool[Array, "N V"], shares: Float[Array, " N"]) -> Float[Array, " V"]:
    """Weight of the clients that read a row."""
    return shares @ met.astype(shares.dtype)


def row_factors(
    share: Float[Array, " V"], participants: Int[Array, ""], factor: Any
) -> Float[Array, " V"]:
    """What the mean step of every token's row is multiplied by.

    The share is that of :func:`row_shares`.

    The factor 0 is ``1 / sum_n shares_n`` over the clients that met the token, which makes the
    step their own weighted mean. A row that nobody met moves by moments of earlier rounds alone;
    it counts as met by one client of mean share. Any other factor is that of all rows, and 1 is
    plain averaging.
    """
    nobody = jnp.maximum(participants, 1).astype(share.dtype)
    by_clients = jnp.where(share > 0.0, 1.0 / jnp.where(share > 0.0, share, 1.0), nobody)
    return jnp.where(factor == 0.0, by_clients, factor)


def scale_rows(params: Params, table: str, factors: Float[Array, " V"]) -> Params:
    """Parameters with the rows of a table of the embedding multiplied."""
    embedding = params["embedding"]
    scaled = factors[:, None] * embedding[table]
    return {**params, "embedding": {**embedding, table: scaled}}


def rows_held(rules: Rules, copies: Params, met: Mapping[str, Array], others: Any) -> Params:
    """Numbers of all clients ``[N, ...]``, with ``others`` in rows that a client does not read.

    They stay as they are where whole tables travel. The others are parameters, or one number.
    """
    if not rules.touched_rows:
        return copies
    embedding = dict(copies["embedding"])
    for table in met.keys() - WHOLE_TABLES:
        other = others["embedding"][table] if isinstance(others, Mapping) else others
        embedding[table] = jnp.where(met[table][..., None], embedding[table], other)
    return {**copies, "embedding": embedding}
