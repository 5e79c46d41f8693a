"""Which descents ``experiments.bound`` sets against the convergence bound, all fixed in advance."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.bound_descents import Setting
from experiments.bound_problems import CLUSTERS

LOSSES = (0.0, 0.1, 0.2, 0.3, 0.5)
MICRO_BATCHES = (1, 4, 8, 32)
LOCAL_STEPS = (1, 4, 16)
PROBLEMS = ("quadratic", "logistic")
STEP = 0.2
"""``eta L_s`` of all local steps of a round together."""

_SPREAD = 0.6
_PATTERN = np.array([1 / 3, -1.0, 1.0, -1 / 3])  # by which clusters' losses differ
_WEIGHTS = {"equal": np.full(CLUSTERS, 1 / CLUSTERS), "unequal": np.array([0.4, 0.3, 0.2, 0.1])}
_PRESENCE = {
    "everyone": np.ones((CLUSTERS, CLUSTERS), bool),
    "one out by turns": ~np.eye(CLUSTERS, dtype=bool),
    "one never": np.tile(np.arange(CLUSTERS) != 2, (CLUSTERS, 1)),
}


class Case(NamedTuple):
    """One descent, as on file.

    Attributes:
      kind: "independent" as the bound assumes, "momentum" and "absence" with an extension,
        "pooled", "correlated" and "shared" against its assumptions.
      problem: name.
      local_steps: ``H``.
      loss: mean ``P_n`` of the clusters.
      loss_spread: how far a cluster's is from it at most, as a part of it.
      micro_batches: ``M``, of all clusters.
      weights: "equal" or "unequal".
      rounds: ``T``, a multiple of the clusters.
      step_smoothness: ``eta L_s``.
      momentum: of the server.
      presence: "everyone", "one out by turns" or "one never".
    """

    kind: str
    problem: str
    local_steps: int
    loss: float
    loss_spread: float
    micro_batches: int
    weights: str
    rounds: int
    step_smoothness: float
    momentum: float = 0.0
    presence: str = "everyone"

    @property
    def erasing(self) -> str:
        """How descents lose micro-batches."""
        against = self.kind in ("pooled", "correlated", "shared")
        return self.kind if against else "independent"

    @property
    def loss_probability(self) -> np.ndarray:
        """``P_n [N]``."""
        return self.loss * (1.0 + self.loss_spread * _PATTERN)

    @property
    def weight(self) -> np.ndarray:
        """``w_n [N]``."""
        return _WEIGHTS[self.weights]


def grid(
    rounds: int,
    losses: Sequence[float] = LOSSES,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    local_steps: Sequence[int] = LOCAL_STEPS,
) -> list[Case]:
    """Every combination; in half of those with losses clusters' losses differ."""
    return [
        Case("independent", problem, steps, loss, spread, count, weights, rounds, STEP / steps)
        for problem in PROBLEMS
        for steps in local_steps
        for loss in losses
        for place, count in enumerate(micro_batches)
        for weights in _WEIGHTS
        for spread in [_SPREAD * ((place + (weights == "equal")) % 2) if loss else 0.0]
    ]


def extensions(rounds: int) -> list[Case]:
    """A server with momentum, its steps in the end as long, and clusters that sit out."""
    combinations = [
        (problem, loss, count)
        for problem in PROBLEMS
        for loss in (0.0, 0.3, 0.5)
        for count in (1, 8)
    ]
    return [
        Case("momentum", problem, 1, loss, 0.0, count, "equal", longer * rounds, step, momentum)
        for momentum, step, longer in ((0.5, STEP / 4, 2), (0.9, STEP / 100, 10))
        for problem, loss, count in combinations
    ] + [
        Case("absence", problem, 1, loss, 0.0, count, "equal", rounds, STEP, 0.0, presence)
        for presence in ("one out by turns", "one never")
        for problem, loss, count in combinations
    ]


def ablations(rounds: int) -> list[Case]:
    """What the bound assumes and does not hold; steps and problems that let it be seen.

    The last case steps as far as independent losses allow.
    """
    quiet = "quiet quadratic"
    return [
        Case("pooled", quiet, 1, 0.5, _SPREAD, 32, "equal", rounds * longer, STEP / longer)
        for longer in (1, 4, 16)
    ] + [
        *(Case("correlated", quiet, 1, 0.5, 0.0, m, "equal", 4 * rounds, STEP) for m in (1, 8, 32)),
        Case("correlated", quiet, 4, 0.5, 0.0, 32, "equal", 4 * rounds, STEP / 4),
        Case("shared", quiet, 1, 0.5, 0.0, 32, "equal", 4 * rounds, STEP),
        Case("shared", quiet, 4, 0.5, 0.0, 32, "equal", 4 * rounds, STEP / 4),
        Case("shared", quiet, 1, 0.7, 0.0, 32, "equal", 40, 0.7),
    ]


def setting(case: Case) -> Setting:
    """Array values of a case."""
    return Setting(
        loss_probability=jnp.asarray(case.loss_probability),
        micro_batches=jnp.full(CLUSTERS, case.micro_batches),
        weight=jnp.asarray(case.weight),
        step_smoothness=jnp.asarray(case.step_smoothness),
        momentum=jnp.asarray(case.momentum),
        present=jnp.asarray(_PRESENCE[case.presence]),
    )
