"""The server's gradient: the parameters before a round less the mean of the clients' copies."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from collapipe_jax.learning.federated.aggregation import aggregate, participant_shares
from collapipe_jax.learning.federated.participation import Participation
from collapipe_jax.learning.federated.rules import Rules
from collapipe_jax.learning.federated.secure_mean import SecureReport, secure_mean
from collapipe_jax.learning.federated.token_rows import row_factors, row_shares, scale_rows
from collapipe_jax.learning.models.layers import Params


def server_step(
    rules: Rules, before: Params, copies: Params, clients: Participation, key: Key[Array, ""]
) -> tuple[Params, SecureReport | None]:
    """The server's gradient, and what secure aggregation did, if it is on.

    Rows of tables are averaged over the clients that read them. Parameters that clients of split
    models do not send are the server's own, which averages them in the clear.

    Args:
      rules: of the clients.
      before: global parameters at the start of the round.
      copies: of the clients after it, leaves ``[N, ...]``.
      clients: who takes part.
      key: of secure aggregation, or of noise.
    """
    shares, met, sent = clients.shares, clients.met, clients.sent
    if rules.secure_aggregation is None:
        if rules.cluster_privacy is None:
            step = jax.tree.map(jnp.subtract, before, aggregate(copies, shares))
        else:
            step = rules.cluster_privacy.step(before, copies, clients.fixed_shares, key)
        report, by_row = None, {table: row_shares(rows, shares) for table, rows in met.items()}
    else:
        updates = jax.tree.map(lambda own, start: own - start[None], copies, before)
        masked = updates
        if sent is not None:
            masked = jax.tree.map(
                lambda is_sent, own: jnp.where(is_sent[None], own, 0.0), sent, updates
            )
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
