"""Rivals at their best: a random search of every policy's own keys, against their defaults.

    python -m experiments.studies.rivals --config=paper --draws=200 --networks=32 --rounds=20 \
        --workdir=runs/rivals

Searched are all policies but those of the method, over all options that their entries name. A draw
changes every key of a policy with probability 1/2, to a value drawn uniformly. Settings drawn twice
run once. All meet the same networks under the same fading, with learning left out.

The best setting has the least median latency of all that break no limit in more networks than the
default. Limits are those of every round, memory of nodes and of the edge server and that no cluster
that can run sits out, and energy and divergence in the mean. Every setting is a line of
``settings.jsonl``, from which a killed run goes on; ``summary.json`` has the table.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import append_line, finite, loads, write_json
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.problem import Control
from collapipe_jax.edge.environment import reset
from collapipe_jax.edge.policies.registry import POLICIES, Policy, make_policy
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.config.default import KEYS, Config
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.realisations import DIVERGENCE_LIMIT, ENERGY_LIMIT
from collapipe_jax.runs.studies.montecarlo import realisation_keys, simulate_reduced
from collapipe_jax.runs.studies.sweep_records import per_round

METHOD = ("dssra", "dssra_wide", "dssra_offline", "greedy")
"""Policies that are no rivals."""
RIVALS = tuple(name for name in POLICIES if name not in METHOD)
_BROKEN, _WIDTH = "violated.", 130
_HEADINGS = ("policy", "default\nmedian, s", "mean, s", "keeps\n%", "best drawn setting")
_HEADINGS += ("its\nmedian, s", "mean, s", "keeps\n%", "less\nmedian, %", "mean, %")

Setting = dict[str, Any]
"""Values of keys of a policy that are not the configuration's."""


class Networks(NamedTuple):
    """Networks on which all policies run, ``[R]``."""

    params: SystemParams
    keys: jax.Array
    rows: jax.Array
    control: Control  # budgets and targets
    can_run: np.ndarray  # whether some cluster can


class Outcome(NamedTuple):
    """What a setting does on every network that can run, ``[R]``."""

    latency_s: np.ndarray
    broken: dict[str, np.ndarray]  # whether a limit is, by its name

    @property
    def keeps(self) -> float:
        """Share of networks in which no limit is broken."""
        return 1.0 - float(np.any(list(self.broken.values()), axis=0).mean())

    def is_within(self, other: "Outcome") -> bool:
        """Whether no limit is broken in more networks than by another setting."""
        return all(own.mean() <= other.broken[name].mean() for name, own in self.broken.items())


def main(argv: Sequence[str]) -> None:
    """Draw settings, simulate those that are not on file, and print the table."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        draws=200,
        networks=32,
        rounds=20,
        seed=(0, "of the draws"),
        policies=",".join(RIVALS),
    )
    given, overrides = parser.parse_known_args(argv)
    require_positive(draws=given.draws, networks=given.networks, rounds=given.rounds)
    names = given.policies.split(",")
    for name in set(names) - set(RIVALS):
        remedy = f"Choose among: {', '.join(RIVALS)}"
        raise InputError("--policies", name, "no rival", remedy)
    config = read_config(given.config, parse_overrides(overrides))
    console, folder = console_for_tables(_WIDTH), Path(given.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "networks": given.networks,
        "rounds": given.rounds,
        "config": json.loads(json.dumps(config.to_dict())),
    }
    cases = {name: draw_settings(name, config, given.draws, given.seed) for name in names}
    found = _outcomes(folder / "settings.jsonl", identity, config, cases, console)
    summary = {name: summarise(own) for name, own in found.items()}
    sizes = {name: getattr(given, name) for name in ("draws", "networks", "rounds")}
    write_json(folder / "summary.json", sizes | {"policies": finite(summary)})
    rows = [_row(name, own) for name, own in summary.items()]
    title = f"Medians and means over {given.networks} networks of {given.rounds} rounds"
    console.print(make_table(_HEADINGS, rows, title=title))


def values_of(option: str, config: Config) -> tuple[Any, ...]:
    """Values of a policy's key, from its description; of a number those listed here."""
    default, quantity = config.policy[option], KEYS["policy"][option].quantity
    counts = tuple(map(int, config.training.micro_batch_choices))
    devices = tuple(range(1, config.network.devices + 1))
    numbers: dict[str, tuple[Any, ...]] = {
        "micro_batches": counts,
        "partitions": devices,
        "cut": ("half", "best", *map(str, range(config.model.encoder_blocks + 1))),
        "client_micro_batches": ("best", *map(str, counts)),
        "accumulation": ("best", *map(str, counts)),
        "clients": ("best", *map(str, devices)),
        "deadline": (0.0, 0.5, 1.0, 2.0, 4.0),
    }
    if option in numbers:
        return numbers[option]
    if isinstance(default, tuple):
        sizes = range(1, len(quantity.choices) + 1)
        return tuple(itertools.chain(*(itertools.combinations(quantity.choices, n) for n in sizes)))
    return tuple(quantity.choices) if quantity.choices else (False, True)


def draw_settings(policy: str, config: Config, draws: int, seed: int) -> list[Setting]:
    """Different settings of a policy, the first one empty: the configuration's own."""
    rng = np.random.default_rng([seed, list(POLICIES).index(policy)])
    settings: list[Setting] = [{}]
    for _ in range(draws):
        setting = {}
        for option in POLICIES[policy].options:
            values = values_of(option, config)
            value = values[int(rng.integers(len(values)))]
            if rng.random() < 0.5 and value != config.policy[option]:
                setting[option] = value
        if setting not in settings:
            settings.append(setting)
    return settings


def summarise(outcomes: Sequence[tuple[Setting, Outcome]]) -> dict[str, Any]:
    """Default and best setting of a policy, as plain values."""
    default = outcomes[0][1]
    able = [(setting, own) for setting, own in outcomes if own.is_within(default)]
    setting, best = min(able, key=lambda each: np.median(each[1].latency_s))
    return {
        "settings": len(outcomes),
        "default": _numbers(default),
        "best": {"setting": setting, **_numbers(best)},
        "less_percent": {
            name: 100.0 * (1.0 - float(mean(best.latency_s) / mean(default.latency_s)))
            for name, mean in (("median", np.median), ("mean", np.mean))
        },
    }


def _numbers(outcome: Outcome) -> dict[str, float]:
    return {
        "median_s": float(np.median(outcome.latency_s)),
        "mean_s": float(np.mean(outcome.latency_s)),
        "keeps": outcome.keeps,
    }


def _outcomes(
    path: Path,
    identity: Mapping[str, Any],
    config: Config,
    cases: Mapping[str, Sequence[Setting]],
    console: Console,
) -> dict[str, list[tuple[Setting, Outcome]]]:
    """Outcomes of all settings; those that are not on file are simulated.

    Raises:
      InputError: if the file is of another configuration or of other networks.
    """
    rows = _rows_on_file(path, identity)
    networks = draw_networks(config, identity["networks"])
    found: dict[str, list[tuple[Setting, Outcome]]] = {name: [] for name in cases}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("settings", total=sum(map(len, cases.values())))
        for name, settings in cases.items():
            for setting in settings:
                place = json.dumps([name, setting])
                if place not in rows:
                    own = _simulate(name, setting, config, networks, identity["rounds"])
                    rows[place] = jax.tree.map(np.ndarray.tolist, own._asdict())
                    append_line(path, json.dumps({"setting": place, **rows[place]}) + "\n")
                line = rows[place]
                broken = {limit: np.array(each) for limit, each in line["broken"].items()}
                found[name].append((setting, Outcome(np.array(line["latency_s"]), broken)))
                progress.advance(task)
    return found


def _rows_on_file(path: Path, identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Lines of settings by their policy and values; the first line is the identity."""
    if not path.exists():
        append_line(path, json.dumps(identity) + "\n")
        return {}
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    if loads(first) != identity:
        problem = "it has settings on other networks, or of another configuration"
        raise InputError("--workdir", str(path.parent), problem, "Give another folder")
    rows = [loads(line, is_finite=False) for line in lines]
    return {row["setting"]: row for row in rows}


def draw_networks(config: Config, count: int) -> Networks:
    """The first networks of a configuration."""
    params = build_system_params(config)
    keys, rows = realisation_keys(seed_of(config, "network"), count), jnp.arange(count)

    @quick_jit
    @jax.vmap
    def limits(key, row):
        problem = reset(key, params, row).system.mean_problem
        return problem.control, jnp.any(can_run(problem))

    control, runs = jax.tree.map(np.asarray, limits(keys, rows))
    return Networks(params, keys, rows, control, runs)


def _simulate(
    name: str, setting: Setting, config: Config, networks: Networks, rounds: int
) -> Outcome:
    """What a setting of a policy does on the networks that can run."""
    policy = make_policy(**{**config.policy.to_dict(), **setting, "name": name})
    return outcome_of(policy, networks, rounds)


def outcome_of(policy: Policy, networks: Networks, rounds: int) -> Outcome:
    """What a policy does on the networks that can run."""
    params, keys, rows, control, runs = networks

    @quick_jit  # Every policy is a program of its own, and runs once.
    def run(keys, rows, params):
        return simulate_reduced(
            keys, rows, params, (), policy=policy, rounds=rounds, reduce=per_round
        )

    kept = run(keys, rows, params)
    values = {name: np.asarray(variable.values, np.float64) for name, variable in kept.items()}
    energy = values["mean_energy_j"] / control.energy_budget_j
    divergence = values["divergence"].mean(axis=1) / control.divergence_target
    broken = {
        name.removeprefix(_BROKEN): count > 0
        for name, count in values.items()
        if name.startswith(_BROKEN)
    }
    broken |= {
        "energy": energy.max(axis=(1, 2)) > ENERGY_LIMIT,
        "divergence": divergence > DIVERGENCE_LIMIT,
    }
    return Outcome(
        values["latency_s"].mean(axis=1)[runs],
        {name: each[runs] for name, each in broken.items()},
    )


def _row(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    default, best = summary["default"], summary["best"]

    def texts(numbers: Mapping[str, float]) -> list[str]:
        latencies = (f"{numbers[key]:.4g}" for key in ("median_s", "mean_s"))
        return [*latencies, f"{100 * numbers['keeps']:.0f}"]

    setting = ", ".join(f"{key}={value}" for key, value in best["setting"].items())
    less = (f"{summary['less_percent'][key]:.1f}" for key in ("median", "mean"))
    return name, *texts(default), setting or "the default", *texts(best), *less


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
