"""The server's gradient: the parameters before a round less the mean of the clients' copies."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from collapipe_jax.federated.aggregation import aggregate, participant_shares
from collapipe_jax.federated.rules import Rules
from collapipe_jax.federated.secure_mean import SecureReport, secure_mean
from collapipe_jax.federated.token_rows import row_factors, row_shares, scale_rows
from collapipe_jax.models.layers import Params


def server_step(
    rules: Rules,
    before: Params,
    copies: Params,
    shares: Float[Array, " N"],
    fixed_shares: Float[Array, " N"],
    met: Mapping[str, Bool[Array, "N V"]],
    sent: PyTree[Bool[Array, "..."]] | None,
    key: Key[Array, ""],
) -> tuple[Params, SecureReport | None]:
    """The server's gradient, and what secure aggregation did, if it is on.

    Args:
      rules: of the clients.
      before: global parameters at the start of the round.
      copies: of the clients after it, leaves ``[N, ...]``.
      shares: as in ``federated``.
      fixed_shares: the same without rescaling to the participants; for noise of privacy.
      met: rows of tables that every client read; they are averaged over those that read them.
      sent: which parameters clients send; the others are the server's, which averages them itself.
      key: of secure aggregation, or of noise.
    """
    if rules.secure_aggregation is None:
        if rules.cluster_privacy is None:
            step, report = jax.tree.map(jnp.subtract, before, aggregate(copies, shares)), None
        else:
            step, report = rules.cluster_privacy.step(before, copies, fixed_shares, key), None
        by_row = {table: row_shares(rows, shares) for table, rows in met.items()}
    else:
        updates = jax.tree.map(lambda own, start: own - start[None], copies, before)
        masked = updates if sent is None else _where(sent, updates, 0.0)
        found = secure_mean(rules.secure_aggregation, masked, shares, met, key)
        update, by_row, report = found.update, found.row_shares, found.report
        shares = participant_shares(shares, found.arrived)
        if sent is not None:
            update = jax.tree.map(jnp.where, sent, update, aggregate(updates, shares))
        step = jax.tree.map(jnp.negative, update)
    for table, share in by_row.items():
        factors = row_factors(share, (shares > 0.0).sum(), rules.embedding_rate_factor)
        step = scale_rows(step, table, factors)
    return step, report


def _where(sent: PyTree[Array], updates: Params, other: float) -> Params:
    return jax.tree.map(lambda mask, leaf: jnp.where(mask[None], leaf, other), sent, updates)
