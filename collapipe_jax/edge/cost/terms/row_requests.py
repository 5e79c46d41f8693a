"""Requests for rows of the embedding, docs/system-model.md, section 21."""

from collapipe_jax.edge.cost.embedding_rows import with_request
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms.addition import SenderAddition, Senders


def row_requests(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """Numbers of the rows that senders ask the base station for, if rows travel alone."""
    return SenderAddition(upload_bits=with_request(problem, senders.samples, 0.0))
