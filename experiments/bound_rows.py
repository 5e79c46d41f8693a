"""Descents of all cases run together, and the rows and summary that come of them."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.bound_cases import Case, setting
from experiments.bound_descents import Path, descend_all
from experiments.bound_problems import Problem, make_problems
from experiments.bound_theorems import bound

_CONFIDENCE = 0.95


def work(cases: Sequence[Case]) -> int:
    """Local steps of a repeat of all of them."""
    return sum(case.rounds * case.local_steps for case in cases)


def as_assumed(cases: Sequence[Case]) -> list[Case]:
    """The same descents with losses as the bound assumes them, each once."""
    return list(dict.fromkeys(case._replace(kind="independent") for case in cases))


def measure(
    cases: dict[str, list[Case]], repeats: int, seed: int, done: Callable[[int], None]
) -> dict:
    """All rows, and their summary.

    Args:
      cases: "settings", "extensions" and "ablations".
      repeats: of every descent.
      seed: of all of them.
      done: told the :func:`work` of every group that has been run.
    """
    problems = make_problems()
    rows = {}
    for part, some in cases.items():
        paths = dict(_run(some, problems, repeats, seed, done))
        rows[part] = [_row(case, problems[case.problem], paths[case]) for case in some]
    paths = dict(_run(as_assumed(cases["ablations"]), problems, repeats, seed, done))
    for row, case in zip(rows["ablations"], cases["ablations"], strict=True):
        path = paths[case._replace(kind="independent")]
        row["measured_as_assumed"] = float(np.mean(path.squared_gradient, dtype=np.float64))
        row["distance_as_assumed"] = _distance(case, problems[case.problem], path)
    return {**rows, "summary": summarise(rows["settings"])}


def _run(
    cases: Sequence[Case],
    problems: dict[str, Problem],
    repeats: int,
    seed: int,
    done: Callable[[int], None],
) -> Iterator[tuple[Case, Path]]:
    """Every case with its repeats, leaves ``[R, ...]``; those of one length together.

    In the order of groups, not in that of the cases.
    """

    def group_of(case: Case) -> tuple:
        return case.problem, case.local_steps, case.rounds, case.erasing

    for key, group in itertools.groupby(sorted(cases, key=group_of), group_of):
        name, local_steps, rounds, erasing = key
        group = list(group)
        settings = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(setting, group))
        keys = jax.random.split(jax.random.key(seed), (len(group), repeats))
        told = {"rounds": rounds, "local_steps": local_steps, "erasing": erasing}
        paths = jax.device_get(descend_all(problems[name], settings, keys, **told))
        done(work(group))
        for place, case in enumerate(group):
            yield case, jax.tree.map(lambda leaf, place=place: leaf[place], paths)


def _row(case: Case, problem: Problem, path: Path) -> dict:
    """What is on file of a case."""
    values = np.asarray(path.squared_gradient, np.float64)
    measured = float(values.mean())
    limit = float(stats.t.ppf(_CONFIDENCE, values.size - 1) * values.std(ddof=1))
    limit /= math.sqrt(values.size)
    most = bound(case, problem, path)
    row = case._asdict() | {
        "measured": measured,
        "measured_low": measured - limit,
        "measured_high": measured + limit,
        "bound": most,
        "factor": most / measured,
    }
    if case.kind == "pooled":
        best, pooled = problem.optimum(case.weight), problem.optimum(_pooled_weight(case))
        row["distance"] = _distance(case, problem, path)
        row["distance_predicted"] = float(np.linalg.norm(pooled - best))
    return row


def _pooled_weight(case: Case) -> np.ndarray:
    """Weights whose objective a mean over survivors descends: by share and survival."""
    weight = case.weight * (1.0 - case.loss_probability)
    return weight / weight.sum()


def _distance(case: Case, problem: Problem, path: Path) -> float:
    """From where repeats end in the mean to where the objective is least."""
    end = np.mean(path.end, axis=0, dtype=np.float64)
    return float(np.linalg.norm(end - problem.optimum(case.weight)))


def summarise(rows: Sequence[dict]) -> dict:
    """Where the bound holds and how far it is from what was measured, by local steps.

    It holds if the upper limit of what was measured is below it.

    Args:
      rows: of the grid.
    """
    return {
        str(steps): {
            "without losses": _factors([row for row in some if row["loss"] == 0.0]),
            "all": _factors(some),
        }
        for steps in sorted({row["local_steps"] for row in rows})
        for some in [[row for row in rows if row["local_steps"] == steps]]
    }


def _factors(rows: Sequence[dict]) -> dict:
    factors = [row["factor"] for row in rows]
    if not rows:
        return {"settings": 0}
    return {
        "settings": len(rows),
        "holds": sum(row["measured_high"] <= row["bound"] for row in rows),
        "factor_median": float(np.median(factors)),
        "factor_min": float(np.min(factors)),
        "factor_max": float(np.max(factors)),
    }
