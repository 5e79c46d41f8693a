"""Races: several policies train on the same network and data, each in a folder of its own."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError, TrainingError
from collapipe_jax.core.files import own_share
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.core.statistics import interval_text, mean_interval
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.learning.tasks.task import FINAL_SCORES
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.experiment import Experiment, at_rate, build_experiment
from collapipe_jax.runs.results.checkpoints import Run, load_entry, save_race
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.store import WHOLE, Shard
from collapipe_jax.runs.training.loop import train_together
from collapipe_jax.runs.training.network_ahead import round_latencies_s
from collapipe_jax.runs.training.ongoing_run import BREAKDOWN

ROWS = {
    "simulated time, s": ("simulated_time_s", "{:.0f}"),
    "mean latency of a round, s": ("mean_latency_s", "{:.2f}"),
    "  of it compute alone, s": ("mean_compute_latency_s", "{:.2f}"),
    "mean energy of a round, all nodes, J": ("mean_energy_j", "{:.2f}"),
    "mean energy over budget, worst node": ("worst_energy_over_budget", "{:.2f}"),
    "mean divergence over target": ("mean_divergence_over_target", "{:.3g}"),
    "peak memory of a device, MiB": ("peak_device_memory_bytes", "{:.1f}"),  # in bytes on file
}
_TARGET = 0.9
"""Share of a seed's best final validation score, to which the time of every policy is measured.

Of a score that should fall, the best one is this share of the goal.
"""


def race(
    config: Config,
    policies: Sequence[str],
    root: Path,
    console: Console,
    *,
    rates: Sequence[float] = (1.0,),
    seeds: int = 1,
    equal_time: bool = False,
    shard: Shard = WHOLE,
) -> bool:
    """Train with every policy in a folder of its own, then compare.

    Args:
      config: of all runs but for policy, rates, seed and, in equal time, rounds.
      policies: their names; the first sets the time.
      root: where the folders go: ``NAME``, and ``NAME_x2_seed1`` for twice the rates and seed 1.
      console: for progress and the table.
      rates: multiples of the local learning rates. The first seed chooses the best of a policy
        by the validation score of what it tests, of equals the first.
      seeds: number of seeds, from that of ``config`` on.
      equal_time: whether all policies have the same simulated time instead of the same rounds.
      shard: a share of the runs. Several rates are chosen when all runs of the first seed are done.

    Returns:
      Whether the race is over; else other shards lack runs, and ``console`` says so.

    Raises:
      InputError: if the configuration is wrong, or ``root`` holds another race. More policies,
        rates and seeds than before are the same race.
      TrainingError: if a run breaks down, and no other rate takes its place.
    """
    if len(set(policies)) < len(policies):
        raise InputError("--policies", list(policies), "has one twice", "Name every policy once")
    for name in policies:
        make_policy(name)  # a wrong name is found before any work
    clock = policies[0] if equal_time else None
    results = Results.create(root, "race", {"clock": clock}, config.to_dict())

    course = _SharedSettings(config, root, console, clock, shard)
    with own_share(root, *shard):
        runs = course.run(policies, rates, range(config.seed, config.seed + seeds))
        if runs is None:
            return False
        save_race(runs, results)
    console.print(race_table(runs, with_rates=len(rates) > 1))
    return True


def _best(runs: Sequence[Run], policy: str) -> Run:
    """The run of a policy with the best last score; those that broke down are not among them."""
    own = [run for run in runs if run.policy == policy]
    if not own:
        raise TrainingError(f"training broke down with {policy} at all rates. Give lower ones.")
    return max(own, key=lambda run: run.merit)


@dataclasses.dataclass
class _SharedSettings:
    """What all runs of a race share."""

    config: Config
    root: Path
    console: Console
    # Policy that sets the simulated time; None where the number of rounds is the same
    clock: str | None
    shard: Shard = WHOLE

    def run(
        self, policies: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
    ) -> list[Run] | None:
        """Train all runs, at the best of several rates on the first seed.

        Returns:
          The runs that are compared, or None if other shards lack some.
        """
        pairs = [(name, rate) for rate in rates for name in policies]
        if len(rates) == 1:
            return self.train(pairs, seeds)
        tried = self.train(pairs, seeds[:1], may_break=True)
        if tried is None:
            return None
        best = [_best(tried, name) for name in policies]
        others = self.train([(run.policy, run.rate) for run in best], seeds[1:])
        return None if others is None else best + others

    def train(
        self, pairs: Sequence[tuple[str, float]], seeds: Sequence[int], may_break: bool = False
    ) -> list[Run] | None:
        """Train on every seed, for pairs of a policy and a multiple of the rates.

        Returns:
          All runs that ended, or None if other shards lack some.
        """
        entries, experiments = [], []
        for seed in seeds:
            for name, rate, experiment in self._entrants(pairs, seed):
                folder = name + (f"_x{rate:g}" if rate != 1.0 else "")
                folder += f"_seed{seed}" if seed != self.config.seed else ""
                headline = experiment.task.headline
                entry = {"policy": name, "rate": rate, "seed": seed}
                entries.append(entry | {"folder": folder, "headline": headline})
                experiments.append(experiment)
        folders = [self.root / entry["folder"] for entry in entries]
        missing = train_shard(experiments, folders, self.console, self.shard, may_break)
        if missing:
            own = f"shard {self.shard.index}/{self.shard.count} has trained its runs; "
            self.console.print(f"{own}others lack {missing}. Run it again when they are done.")
            return None
        return [
            load_entry(**entry, workdir=folder)
            for entry, folder in zip(entries, folders, strict=True)
            if not (folder / BREAKDOWN).exists()
        ]

    def _entrants(
        self, pairs: Sequence[tuple[str, float]], seed: int
    ) -> Iterator[tuple[str, float, Experiment]]:
        """Experiments of one seed; the corpus is read once."""
        experiments: dict[str, Experiment] = {}
        for name in dict.fromkeys(name for name, _ in pairs):
            own = self.config.copy_and_resolve_references()
            own.seed, own.policy.name = seed, name
            experiments[name] = build_experiment(own, like=experiments.values())
        rounds = self._rounds(experiments)
        for name, rate in pairs:
            own: Config = ConfigDict(experiments[name].config)
            _spread_over(own, rounds[name])
            spread = dataclasses.replace(experiments[name], config=own.to_dict())
            yield name, rate, at_rate(spread, rate)

    def _rounds(self, experiments: Mapping[str, Experiment]) -> dict[str, int]:
        """Rounds of every policy on one seed.

        Raises:
          InputError: if the policy that sets the clock has rounds that never end, or take no time.
        """
        rounds = {name: int(self.config.training.rounds) for name in experiments}
        if self.clock is None:
            return rounds
        lasting_s = round_latencies_s(experiments[self.clock])
        time_s = sum(itertools.islice(lasting_s, rounds[self.clock]))
        if not 0.0 < time_s < math.inf:
            problem = f"the first one sets the time, and its rounds take {time_s} s"
            remedy = "Put another policy first, or choose --equal=rounds"
            raise InputError("--policies", self.clock, problem, remedy)
        others = [name for name in experiments if name != self.clock]
        return rounds | {name: rounds_within(experiments[name], time_s) for name in others}


def rounds_within(experiment: Experiment, time_s: float) -> int:
    """How many rounds end within a simulated time; at least one."""
    elapsed_s = itertools.accumulate(round_latencies_s(experiment))
    return max(1, sum(1 for _ in itertools.takewhile(lambda now_s: now_s <= time_s, elapsed_s)))


def _spread_over(config: Config, rounds: int) -> None:
    """Set the rounds; warm-up, evaluations and checkpoints keep their shares of them."""
    share = rounds / config.training.rounds
    for place, key in (
        (config.evaluation, "every_rounds"),
        (config.evaluation, "estimate_every_rounds"),
        (config, "checkpoint_every_rounds"),
    ):
        if place[key]:
            place[key] = max(1, round(share * place[key]))
    if share != 1.0:
        last = rounds * config.training.local_steps - 1  # what a schedule needs after the warm-up
        config.training.warmup_steps = min(round(share * config.training.warmup_steps), last)
    config.training.rounds = rounds


def race_table(runs: Sequence[Run], with_rates: bool = False) -> Table:
    """Policies side by side, test scores first; means over seeds with their intervals.

    Every policy has as many runs as there are seeds.
    """
    teams: dict[str, list[Run]] = {}
    for run in runs:
        teams.setdefault(run.policy, []).append(run)
    seeds = len({run.seed for run in runs})
    title = "Same network, same data, same seed"
    if seeds > 1:
        title += f" for all; mean of {seeds} seeds, 95 %"
    rows = _score_rows(teams) | _time_to_score(teams)
    if with_rates:
        rates = [f"{team[0].rate:g}" for team in teams.values()]
        rows["learning rates, of those configured"] = rates
    rounds = [[len(run.record.history["round"]) for run in team] for team in teams.values()]
    rows["rounds"] = [_cell(counts, "{:.0f}") for counts in rounds]
    for label, (key, form) in ROWS.items():
        unit = bytes_to_mib if key.endswith("_bytes") else float
        rows[label] = [
            _cell([unit(run.summary[key]) for run in team], form) for team in teams.values()
        ]
    cells = [(label, *row) for label, row in rows.items()]
    return make_table(("", *teams), cells, title=title, title_justify="center")


def _score_rows(teams: Mapping[str, Sequence[Run]]) -> dict[str, list[str]]:
    """Every final score, and the lead of the first policy in the headline."""
    first = next(iter(teams.values()))
    rows = {}
    for key, value in first[0].summary.items():
        if not key.startswith(FINAL_SCORES) or not isinstance(value, int | float):
            continue
        values = [[run.summary[key] for run in team] for team in teams.values()]
        rows[key.replace("_", " ")] = [_cell(row, "{:.1f}") for row in values]
        if key == first[0].headline and len(first) > 1:
            leads = [np.subtract(values[0], row) for row in values]
            rows[f"  under {first[0].policy}"] = [_cell(lead, "{:.1f}") for lead in leads]
    return rows


def _cell(values: Any, form: str) -> str:
    """One value, or the mean of several with its interval."""
    interval = mean_interval(np.asarray(values))
    return "not finite" if interval["mean"] is None else interval_text(interval, form)


def _time_to_score(teams: Mapping[str, Sequence[Run]]) -> dict[str, list[str]]:
    """When each run's validation score first reached a share of the seed's best final one."""
    goals, cells = [], []
    for runs in zip(*teams.values(), strict=True):
        best = max(runs, key=lambda run: run.merit)
        goals.append(
            best.validation_score * (1.0 / _TARGET if best.task.lower_is_better else _TARGET)
        )
        compare = np.less_equal if best.task.lower_is_better else np.greater_equal
        times_s = (
            run.record.history["simulated_time_s"][compare(run.record.history["score"], goals[-1])]
            for run in runs
        )
        known = np.isfinite(goals[-1])
        cells.append(
            [f"{time_s[0]:.0f}" if time_s.size and known else "never" for time_s in times_s]
        )
    goal = ", ".join(f"{goal:.1f}" if np.isfinite(goal) else "not finite" for goal in goals)
    side = "below" if next(iter(teams.values()))[0].task.lower_is_better else "above"
    label = f"evaluated at {goal} or {side} first after, s"
    return {label: [", ".join(team) for team in zip(*cells, strict=True)]}


def train_shard(
    experiments: Sequence[Experiment],
    workdirs: Sequence[Path],
    console: Console,
    shard: Shard = WHOLE,
    may_break: bool = False,
) -> int:
    """Train the runs of a shard that are not finished.

    Args:
      experiments: the runs of all shards, the same in every process.
      workdirs: folder of each.
      console: for progress.
      shard: which of them are trained here.
      may_break: whether a run that breaks down is done, too.

    Returns:
      The number of runs that all shards lack.
    """
    ends = ("summary.json", BREAKDOWN) if may_break else ("summary.json",)

    def is_done(workdir: Path) -> bool:
        return any((workdir / end).exists() for end in ends)

    # A run that broke down breaks down again: it is not tried twice.
    own = [n for n in shard.of(range(len(experiments))) if not (may_break and is_done(workdirs[n]))]
    folders = [workdirs[place] for place in own]
    with contextlib.suppress(*([TrainingError] if may_break else [])):
        train_together([experiments[place] for place in own], folders, resume=True, console=console)
    return sum(not is_done(workdir) for workdir in workdirs)
