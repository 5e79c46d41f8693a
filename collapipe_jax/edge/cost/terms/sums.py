"""All terms of a round, and their sums; a new term is one file beside this and one entry here."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from collapipe_jax.edge.cost.decision import Segments
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms.addition import PartitionAddition, SenderAddition, Senders
from collapipe_jax.edge.cost.terms.moments import moving_moments
from collapipe_jax.edge.cost.terms.row_requests import row_requests
from collapipe_jax.edge.cost.terms.secure_exchange import secure_exchange
from collapipe_jax.edge.cost.terms.signalling import d2d_signals, d2e_signals
from collapipe_jax.edge.cost.terms.switching import switching

_Addition = TypeVar("_Addition", SenderAddition, PartitionAddition)

SENDER_TERMS: tuple[Callable[[RoundProblem, Senders], SenderAddition], ...] = (
    secure_exchange,
    d2e_signals,
    row_requests,
)
"""Terms of all rounds, by who talks to the base station."""

PartitionTerm = Callable[[RoundProblem, Segments], PartitionAddition]
PARTITION_TERMS: tuple[PartitionTerm, ...] = (moving_moments, switching, d2d_signals)
"""Terms of pipelines, by the segments of their devices."""


def sender_additions(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """What all terms add to every sender, 0 to one that does not take part."""
    total = _add([term(problem, senders) for term in SENDER_TERMS])
    return jax.tree.map(lambda number: jnp.where(senders.takes_part, number, 0.0), total)


def partition_additions(
    problem: RoundProblem, segments: Segments, terms: Sequence[PartitionTerm] = PARTITION_TERMS
) -> PartitionAddition:
    """What terms add to a partition; of none, nothing."""
    return _add([PartitionAddition(), *(term(problem, segments) for term in terms)])


def _add(additions: Sequence[_Addition]) -> _Addition:
    """Sum of additions of one kind."""
    return functools.reduce(lambda *two: jax.tree.map(operator.add, *two), additions)
