r"""Train with several policies on the same network and data: score against simulated time.

    python -m experiments.race --config=configs/classification_clinc150.py --workdir=runs/race \
        --policies=dssra,titanic,vanilla_fl,splitfed --equal=time --seeds=3 --rates=1,2

Every policy is a training run of its own in the workdir; what is finished or saved is gone on
with. With ``--equal=time`` the first policy trains for the configured rounds, and every other
for as many as fit in the simulated time that these take, with warm-up, schedule, evaluations and
checkpoints spread over its own rounds. With ``--rates=1,2,4`` every policy trains once at each
multiple of the configured learning rates, on the first seed, and goes into the race with the one
whose last validation score is best; where the time is too short to learn anything there, give one
multiple for all instead. Every seed is another network, split and initial model. Ends with a
table, ``race.json``, and the figures.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict
from rich.console import Console

from collapipe_jax.command_line import (
    console_for_tables,
    read_numbers,
    require_positive,
    run_training,
)
from collapipe_jax.config.experiment import Experiment, build_experiment, build_optimizers
from collapipe_jax.errors import InputError
from collapipe_jax.federated.optimizers import Optimizers
from collapipe_jax.files.checkpoints import open_workdir
from collapipe_jax.policies.registry import CLIENT_POLICIES, POLICIES, make_policy
from collapipe_jax.training.loop import round_latencies_s, train
from experiments.configuration import read_config
from experiments.race_files import Run, read_run, save_race
from experiments.race_summary import race_table
from figures.all import draw_race

_WIDTH = 160


def main(argv: Sequence[str]) -> None:
    """Train with every policy, print the table, draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas")
    parser.add_argument("--rates", default="1", help="multiples of the learning rates, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the configured one on")
    parser.add_argument(
        "--equal", choices=("rounds", "time"), default="rounds", help="what all policies have alike"
    )
    options, overrides = parser.parse_known_args(argv)
    require_positive(seeds=options.seeds)
    race(
        read_config(options.config, overrides),
        options.policies.split(","),
        Path(options.workdir),
        console_for_tables(_WIDTH),
        rates=read_numbers("--rates", options.rates, zero=False),
        seeds=options.seeds,
        equal_time=options.equal == "time",
    )


def race(
    config: ConfigDict,
    policies: Sequence[str],
    root: Path,
    console: Console,
    *,
    rates: Sequence[float] = (1.0,),
    seeds: int = 1,
    equal_time: bool = False,
) -> None:
    """Train with every policy in a folder of its own, then compare.

    Args:
      config: of all runs but for policy, rates, seed and, in equal time, rounds.
      policies: their names; the first sets the time.
      root: where the folders go: ``NAME``, and ``NAME_x2_seed1`` for twice the rates and seed 1.
      console: where progress and the table are shown.
      rates: multiples of the local learning rates; the best run of a policy by its last
        validation score, of equals the first, is the one that is compared. Chosen on the first
        seed, kept on the others.
      seeds: how many, from that of ``config`` on.
      equal_time: whether all policies have the same simulated time instead of the same rounds.

    Raises:
      InputError: if the configuration is wrong, or ``root`` holds another race. More policies,
        rates and seeds than before are the same race.
    """
    if len(set(policies)) < len(policies):
        raise InputError("--policies", list(policies), "has one twice", "Name every policy once")
    for name in policies:
        make_policy(name)  # a wrong name is told before any work
    clock = policies[0] if equal_time else None
    open_workdir(root, {"race": {"clock": clock}, "config": config.to_dict()}, resume=True)

    course = _Course(config, root, console, clock)
    tried = course.train([(name, rate) for rate in rates for name in policies], config.seed)
    runs = [
        max((run for run in tried if run.policy == name), key=lambda run: run.last_score)
        for name in policies
    ]
    chosen = [(run.policy, run.rate) for run in runs]
    for seed in range(config.seed + 1, config.seed + seeds):
        runs += course.train(chosen, seed)
    save_race(runs, root)
    console.print(race_table(runs, told_rates=len(rates) > 1))
    for path in draw_race(runs, root / "figures"):
        console.print(f"figure: {path}")


@dataclasses.dataclass
class _Course:
    """What all runs of a race have alike.

    Attributes:
      config: of all runs but for policy, rates, seed and, in equal time, rounds.
      root: where their folders go.
      console: where progress is shown.
      clock: policy that sets the simulated time of all; None where rounds are alike instead.
      optimizers: by way of learning, rate and rounds; one object is compiled once.
    """

    config: ConfigDict
    root: Path
    console: Console
    clock: str | None
    optimizers: dict[tuple[bool, float, int], Optimizers] = dataclasses.field(default_factory=dict)

    def train(self, pairs: Sequence[tuple[str, float]], seed: int) -> list[Run]:
        """Train on one seed, for pairs of a policy and a multiple of the rates."""
        runs = []
        for name, rate, experiment in self._entrants(pairs, seed):
            folder = name + (f"_x{rate:g}" if rate != 1.0 else "")
            folder += f"_seed{seed}" if seed != self.config.seed else ""
            self.console.print(f"[bold]{folder}[/bold]")
            train(experiment, self.root / folder, resume=True, console=self.console)
            headline = experiment.objective.headline
            runs.append(read_run(name, rate, seed, headline, self.root / folder))
        return runs

    def _entrants(
        self, pairs: Sequence[tuple[str, float]], seed: int
    ) -> Iterator[tuple[str, float, Experiment]]:
        """Experiments of one seed; the corpus is read once for each way of learning."""
        built: dict[bool, Experiment] = {}

        def build(name: str) -> Experiment:
            own = self.config.copy_and_resolve_references()
            own.seed, own.policy.name = seed, name
            by_clients = name in CLIENT_POLICIES
            if by_clients not in built:
                built[by_clients] = build_experiment(own)
            return dataclasses.replace(
                built[by_clients], config=own.to_dict(), policy=make_policy(**own.policy)
            )

        rounds = self._rounds({name: build(name) for name, _ in pairs})
        for name, rate in pairs:
            experiment = build(name)
            own = ConfigDict(experiment.config)
            _spread_over(own, rounds[name])
            for key in ("client_learning_rate", "decoder_learning_rate"):
                own.training[key] *= rate
            learns = (name in CLIENT_POLICIES, rate, rounds[name])
            if learns not in self.optimizers:
                self.optimizers[learns] = build_optimizers(own)
            optimizers = self.optimizers[learns]
            yield (
                name,
                rate,
                dataclasses.replace(experiment, config=own.to_dict(), optimizers=optimizers),
            )

    def _rounds(self, experiments: Mapping[str, Experiment]) -> dict[str, int]:
        """Rounds of every policy on one seed.

        Raises:
          InputError: if the policy that sets the clock has rounds that never end, or take no time.
        """
        rounds = dict.fromkeys(experiments, self.config.training.rounds)
        if self.clock is None:
            return rounds
        lasting_s = round_latencies_s(experiments[self.clock])
        time_s = sum(itertools.islice(lasting_s, rounds[self.clock]))
        if not 0.0 < time_s < math.inf:
            raise InputError(
                "--policies",
                self.clock,
                f"the first one sets the time, and its rounds take {time_s} s",
                "Put another policy first, or choose --equal=rounds",
            )
        others = [name for name in experiments if name != self.clock]
        return rounds | {name: rounds_within(experiments[name], time_s) for name in others}


def rounds_within(experiment: Experiment, time_s: float) -> int:
    """How many rounds end within a simulated time; at least one."""
    elapsed_s = itertools.accumulate(round_latencies_s(experiment))
    return max(1, sum(1 for _ in itertools.takewhile(lambda now_s: now_s <= time_s, elapsed_s)))


def _spread_over(config: ConfigDict, rounds: int) -> None:
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


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
