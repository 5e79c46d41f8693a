"""The convergence bound against descents whose constants are known.

    python -m experiments.studies.bound --workdir=runs/bound

A grid of descents on a quadratic and on logistic regression: local steps, losses,
micro-batches and weights. The mean of the squared gradient over all steps, with a one-sided
95 % limit from the repeats, is set against the bound, docs/system-model.md (18) and
docs/theory.md. So are a server with momentum and clusters that sit out; and descents that
break what the bound assumes: a mean over all survivors, and micro-batches that are lost
together. Constants are exact, or the largest that the descents met. Takes some minutes; a
run that was killed goes on with the same arguments, table by table.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.edge.cost import convergence
from collapipe_jax.edge.cost.convergence import Learning, participating_weight
from collapipe_jax.runs.results.experiment import Results, as_columns, as_rows
from experiments.studies.bound_descents import (
    BATCH,
    CLUSTERS,
    Problem,
    Setting,
    Trace,
    check_lengths,
    descend_all,
    make_problems,
)

LOSSES = (0.0, 0.1, 0.2, 0.3, 0.5)
MICRO_BATCHES = (1, 4, 8, 32)
LOCAL_STEPS = (1, 4, 16)
STEP = 0.2
"""``eta L_s`` of all local steps of a round together."""

_CONFIDENCE = 0.95
_SPREAD = 0.6
_PATTERN = np.array([1 / 3, -1.0, 1.0, -1 / 3])  # by which clusters' losses differ
_WEIGHTS = {
    "equal": np.full(CLUSTERS, 1 / CLUSTERS),
    "unequal": np.array([0.4, 0.3, 0.2, 0.1]),
}
_PRESENCE = {
    "everyone": np.ones((CLUSTERS, CLUSTERS), bool),
    "one out by turns": ~np.eye(CLUSTERS, dtype=bool),
    "one never": np.tile(np.arange(CLUSTERS) != 2, (CLUSTERS, 1)),
}
_STYLE = {"box": box.SIMPLE_HEAD, "pad_edge": False}


class DescentCase(NamedTuple):
    """One descent, as on file.

    Its kind is "independent" as the bound assumes, "momentum" or "absence" with an extension,
    or "pooled", "correlated" or "shared" against its assumptions.
    """

    kind: str
    problem: str
    local_steps: int  # H
    loss: float  # mean P_n of the clusters
    loss_spread: float  # how far a cluster's is from it at most, as a part of it
    micro_batches: int  # M, of all clusters
    weights: str  # a key of _WEIGHTS
    rounds: int  # T, a multiple of the clusters
    step_smoothness: float  # eta L_s
    momentum: float = 0.0  # of the server
    presence: str = "everyone"  # a key of _PRESENCE

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

    @property
    def setting(self) -> Setting:
        """The array values."""
        return Setting(
            loss_probability=jnp.asarray(self.loss_probability),
            micro_batches=jnp.full(CLUSTERS, self.micro_batches),
            weight=jnp.asarray(self.weight),
            step_smoothness=jnp.asarray(self.step_smoothness),
            momentum=jnp.asarray(self.momentum),
            present=jnp.asarray(_PRESENCE[self.presence]),
        )


def grid(
    rounds: int,
    losses: Sequence[float] = LOSSES,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    local_steps: Sequence[int] = LOCAL_STEPS,
) -> list[DescentCase]:
    """Every combination; in half of those with losses clusters' losses differ."""
    return [
        DescentCase(
            "independent", problem, steps, loss, spread, count, weights, rounds, STEP / steps
        )
        for problem in ("quadratic", "logistic")
        for steps in local_steps
        for loss in losses
        for place, count in enumerate(micro_batches)
        for weights in _WEIGHTS
        for spread in [_SPREAD * ((place + (weights == "equal")) % 2) if loss else 0.0]
    ]


def extensions(rounds: int) -> list[DescentCase]:
    """A server with momentum, its steps in the end as long, and clusters that sit out."""
    combinations = list(itertools.product(("quadratic", "logistic"), (0.0, 0.3, 0.5), (1, 8)))
    return [
        DescentCase(
            "momentum", problem, 1, loss, 0.0, count, "equal", longer * rounds, step, momentum
        )
        for momentum, step, longer in ((0.5, STEP / 4, 2), (0.9, STEP / 100, 10))
        for problem, loss, count in combinations
    ] + [
        DescentCase("absence", problem, 1, loss, 0.0, count, "equal", rounds, STEP, 0.0, presence)
        for presence in ("one out by turns", "one never")
        for problem, loss, count in combinations
    ]


def ablations(rounds: int) -> list[DescentCase]:
    """What the bound assumes and does not hold; steps and problems that let it be seen.

    The last case steps as far as independent losses allow.
    """
    quiet = "quiet quadratic"
    return [
        DescentCase("pooled", quiet, 1, 0.5, _SPREAD, 32, "equal", rounds * longer, STEP / longer)
        for longer in (1, 4, 16)
    ] + [
        *(
            DescentCase("correlated", quiet, 1, 0.5, 0.0, m, "equal", 4 * rounds, STEP)
            for m in (1, 8, 32)
        ),
        DescentCase("correlated", quiet, 4, 0.5, 0.0, 32, "equal", 4 * rounds, STEP / 4),
        DescentCase("shared", quiet, 1, 0.5, 0.0, 32, "equal", 4 * rounds, STEP),
        DescentCase("shared", quiet, 4, 0.5, 0.0, 32, "equal", 4 * rounds, STEP / 4),
        DescentCase("shared", quiet, 1, 0.7, 0.0, 32, "equal", 40, 0.7),
    ]


def main(argv: Sequence[str]) -> None:
    """Run all descents, print the tables and write the results."""
    parser = make_parser(
        __doc__,
        workdir="runs/bound",
        repeats=(32, "of every descent"),
        rounds=(200, "of most descents"),
        seed=0,
    )
    given, console = parser.parse_args(argv), Console()
    check_lengths(given.repeats, given.rounds)
    options = {"repeats": given.repeats, "rounds": given.rounds, "seed": given.seed}
    results = Results.create(given.workdir, "bound", options)
    tables = {
        "settings": grid(given.rounds),
        "extensions": extensions(given.rounds),
        "ablations": ablations(given.rounds),
    }
    for name in results.missing(tables):
        rows = measure(tables[name], given.repeats, given.seed, console)
        results.write(name, as_columns(rows, "case"))
    rows = {name: as_rows(results.read(name)) for name in tables}
    summary = summarise(rows["settings"])
    path = results.write_summary({**options, "summary": summary})
    console.print(_summary_table(summary))
    console.print(_extensions_table(rows["extensions"]))
    console.print(_ablations_table(rows["ablations"]))
    print(f"written: {path}")


def measure(
    cases: Sequence[DescentCase], repeats: int, seed: int, console: Console
) -> list[dict[str, Any]]:
    """Rows of cases; those against the assumptions with the same descent as assumed."""
    problems = make_problems()
    against = [case for case in cases if case.erasing != "independent"]
    assumed = {case: case._replace(kind="independent") for case in against}
    every = dict.fromkeys([*cases, *assumed.values()])
    traces: dict[DescentCase | None, Trace] = dict(_run(every, problems, repeats, seed, console))
    return [
        _row(case, problems[case.problem], traces[case], traces.get(assumed.get(case)))
        for case in cases
    ]


def _run(
    cases: Iterable[DescentCase],
    problems: Mapping[str, Problem],
    repeats: int,
    seed: int,
    console: Console,
) -> Iterator[tuple[DescentCase, Trace]]:
    """Every case with its repeats, leaves ``[R, ...]``; those of one length together."""

    def group_of(case: DescentCase) -> tuple:
        return case.problem, case.local_steps, case.rounds, case.erasing

    groups = itertools.groupby(sorted(cases, key=group_of), group_of)
    groups = [(key, list(members)) for key, members in groups]
    for key, group in track(groups, "descents", console=console):
        name, local_steps, rounds, erasing = key
        settings = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(one.setting for one in group))
        keys = jax.random.split(jax.random.key(seed), (len(group), repeats))
        lengths = {"rounds": rounds, "local_steps": local_steps}
        traces = descend_all(problems[name], settings, keys, **lengths, erasing=erasing)
        traces = jax.device_get(traces)
        for place, case in enumerate(group):
            yield case, jax.tree.map(lambda leaf, place=place: leaf[place], traces)


def _row(
    case: DescentCase, problem: Problem, trace: Trace, assumed: Trace | None
) -> dict[str, Any]:
    """Measured and bounded mean squared gradient of a case, as on file."""
    row = case._asdict() | compared(trace, bound(case, problem, trace))
    if assumed is not None:
        # A mean over survivors descends the objective of other weights: by share and survival.
        survives = case.weight * (1.0 - case.loss_probability)
        best, pooled = (problem.optimum(w) for w in (case.weight, survives / survives.sum()))
        is_pooled = case.kind == "pooled"
        row |= {
            "distance": _distance(case, problem, trace) if is_pooled else np.nan,
            "distance_predicted": np.linalg.norm(pooled - best) if is_pooled else np.nan,
            "measured_as_assumed": float(np.mean(assumed.squared_gradient, dtype=np.float64)),
            "distance_as_assumed": _distance(case, problem, assumed),
        }
    return row


def compared(trace: Trace, most: float) -> dict[str, float]:
    """Measured mean squared gradient of the repeats, its limits, and the bound over it."""
    values = np.asarray(trace.squared_gradient, np.float64)
    measured = float(values.mean())
    limit = float(stats.t.ppf(_CONFIDENCE, values.size - 1) * values.std(ddof=1))
    limit /= math.sqrt(values.size)
    return {
        "measured": measured,
        "measured_low": measured - limit,
        "measured_high": measured + limit,
        "bound": most,
        "factor": most / measured,
    }


def _distance(case: DescentCase, problem: Problem, trace: Trace) -> float:
    """Distance of the repeats' mean end from the optimum."""
    end = np.mean(trace.end, axis=0, dtype=np.float64)
    return float(np.linalg.norm(end - problem.optimum(case.weight)))


def constants(
    case: DescentCase, problem: Problem, trace: Trace
) -> tuple[Learning, convergence.DescentSettings]:
    """What the theorems read of a case.

    Variance and heterogeneity are the largest that any of its repeats met, leaves ``[R, ...]``
    of the trace: the proofs use them nowhere else.
    """
    at = case.setting
    learning = Learning(
        cluster_weight=at.weight,
        gradient_variance=jnp.max(trace.variance),
        gradient_heterogeneity=jnp.max(trace.heterogeneity),
    )
    descent = convergence.DescentSettings(
        smoothness=problem.smoothness,
        start_gap=start_gap(problem, case.weight),
        step_size=at.step_smoothness / problem.smoothness,
        rounds=case.rounds,
        batch=BATCH,
        micro_batches=at.micro_batches,
        loss_probability=at.loss_probability,
    )
    return learning, descent


def bound(case: DescentCase, problem: Problem, trace: Trace) -> float:
    """The theorem for a case, docs/system-model.md (18) and its like of docs/theory.md."""
    at = case.setting
    learning, descent = constants(case, problem, trace)
    if case.kind == "momentum":
        return float(_momentum_bound(learning, descent, at.momentum))
    if case.kind == "absence":
        return float(np.mean([_absence_bound(learning, descent, row) for row in at.present]))
    if case.local_steps > 1:
        return float(_local_steps_bound(learning, descent, case.local_steps))
    return float(_one_step_bound(learning, descent))


def start_gap(problem: Problem, weight: np.ndarray) -> float:
    """``F_0 - F*``."""
    ends = problem.start, jnp.asarray(problem.optimum(weight))
    first, last = (np.asarray(problem.objectives(x), np.float64) @ weight for x in ends)
    return float(first - last)


_one_step_bound = jax.jit(convergence.one_step_bound)
_local_steps_bound = jax.jit(convergence.local_steps_bound)
_momentum_bound = jax.jit(convergence.momentum_bound)


@jax.jit
def _absence_bound(
    learning: Learning, descent: convergence.DescentSettings, present: jax.Array
) -> jax.Array:
    """The bound if the same clusters sat out in all rounds; its mean over rounds is the bound."""
    bias = convergence.absence_bias(learning, present)
    ratio = convergence.absence_ratio(learning.cluster_weight, present)
    participating = learning.replace(
        cluster_weight=participating_weight(learning.cluster_weight, present),
        gradient_heterogeneity=(1.0 + ratio) ** 2 * learning.gradient_heterogeneity,
    )
    return convergence.one_step_bound(participating, descent) + bias


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the bound holds and its factor over what was measured, by local steps.

    It holds if the upper limit of what was measured is below it.
    """
    summary = {}
    for steps in sorted({row["local_steps"] for row in rows}):
        some = [row for row in rows if row["local_steps"] == steps]
        lossless = [row for row in some if row["loss"] == 0.0]
        summary[str(steps)] = {"without losses": factors(lossless), "all": factors(some)}
    return summary


def factors(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the bound holds, and its factor over what was measured."""
    if not rows:
        return {"settings": 0}
    factors = [row["factor"] for row in rows]
    return {
        "settings": len(rows),
        "holds": sum(row["measured_high"] <= row["bound"] for row in rows),
        "factor_median": float(np.median(factors)),
        "factor_min": min(factors),
        "factor_max": max(factors),
    }


def _summary_table(summary: Mapping[str, Any]) -> Table:
    rows = []
    for steps, parts in summary.items():
        for name, part in parts.items():
            factors = (f"{part[f'factor_{which}']:.1f}" for which in ("median", "min", "max"))
            rows.append((steps, name, f"{part['holds']} of {part['settings']}", *factors))
    headings = ("local steps", "losses", "holds", "factor, median", "smallest", "largest")
    return make_table(headings, rows, left=0, title="bound over measured", **_STYLE)


def _extensions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    groups: dict[str, list] = {}
    for row in rows:
        momentum = f"momentum {row['momentum']}"
        groups.setdefault(row["presence"] if row["kind"] == "absence" else momentum, []).append(row)
    cells = []
    for name, members in groups.items():
        part = factors(members)
        ends = f"{part['factor_min']:.1f}", f"{part['factor_max']:.1f}"
        cells.append((name, f"{part['holds']} of {part['settings']}", *ends))
    headings, title = ("of", "holds", "smallest", "largest"), "extensions, bound over measured"
    return make_table(headings, cells, left=0, title=title, **_STYLE)


def _ablations_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = []
    for row in rows:
        sizes = row["local_steps"], row["micro_batches"], row["step_smoothness"]
        numbers = (row[key] for key in ("bound", "measured", "measured_as_assumed"))
        distances = (row[key] for key in ("distance", "distance_predicted"))
        away = ("" if np.isnan(distance) else f"{distance:.3f}" for distance in distances)
        cells.append((row["kind"], *map(str, sizes), *(f"{x:.3g}" for x in numbers), *away))
    headings = ("losses", "H", "M", "eta L", "bound", "measured", "assumed", "away", "formula")
    return make_table(headings, cells, left=0, title="against the assumptions", **_STYLE)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
