"""Networks of training runs, decided ahead of the learning, which they never depend on."""

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax import Array
from rich.console import Console

from collapipe_jax.core.batch_axis import pick, stack
from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS, quick_jit
from collapipe_jax.edge.environment import (
    Environment,
    SystemRound,
    SystemState,
    TrialValue,
    best_trial,
    budgets_of_trial,
    initial_state,
    settled,
    simulate_round,
    trial_value,
    try_cut,
)
from collapipe_jax.edge.policies.registry import Mode, ModePolicy, Policy, policy_entry
from collapipe_jax.edge.system import EdgeSystem
from collapipe_jax.runs import hosts
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.config.system import cuts_of
from collapipe_jax.runs.training.learning_rounds import Configured, network_keys, run_key

_WINDOW = 16
"""Rounds that are decided in one call."""

NetworkRound = tuple[SystemState, SystemRound]
"""The network after a round, and the round's record."""


def initial_network(experiment: Experiment) -> SystemState:
    """The network before the first round, on a CPU."""
    return network_at_start(experiment, experiment.system)


def network_at_start(run: Configured, system: EdgeSystem) -> SystemState:
    """A system before the first round of a run, on a CPU."""
    _, key = jax.random.split(run_key(run, 1, "network"))
    return _initial_state(*jax.device_put((key, system), cpus()[0]))


_initial_state = quick_jit(initial_state)


class NetworkAhead:
    """Networks of several runs, decided a window at a time.

    A decision is thousands of small operations, so it is made on a CPU even beside an
    accelerator. Runs of one policy share a program.

    Args:
      experiments: the runs.
      states: networks after the rounds that are done.
      done: numbers of these rounds.
      device: which of the CPU's devices decides, by its number.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        states: Sequence[SystemState],
        done: Sequence[int],
        device: int = 0,
    ):
        self._device = cpus()[device]
        self._experiments, self._states, self._decided = experiments, list(states), list(done)
        self._ahead: list[deque[NetworkRound]] = [deque() for _ in experiments]
        groups: dict[Hashable, list[int]] = {}
        for place, experiment in enumerate(experiments):
            groups.setdefault(_program(experiment), []).append(place)
        self._groups = [(places, self._systems(places)) for places in groups.values()]

    def take(self, counts: Sequence[int]) -> list[list[NetworkRound]]:
        """The next rounds of every run, as many as ``counts`` says."""
        for places, systems in self._groups:
            while short := [one for one in places if len(self._ahead[one]) < counts[one]]:
                self._decide(places, systems, short)
        return [
            [ahead.popleft() for _ in range(count)]
            for ahead, count in zip(self._ahead, counts, strict=True)
        ]

    def restore(self, rounds: Mapping[str, Mapping[str, Any]]) -> list[list[NetworkRound]]:
        """What :meth:`take` returned on another host, from its state dict of ``flax``."""
        restored: Any = [
            [serialization.from_state_dict(self._example, state) for state in own.values()]
            for own in rounds.values()
        ]
        return restored

    @functools.cached_property
    def _example(self) -> Any:
        """Structure of a round of the first run; several hosts have no other."""
        return self.lower().out_info

    def _systems(self, places: Sequence[int]) -> EdgeSystem:
        """The systems of runs of one program, leaves ``[R, ...]``."""
        return jax.device_put(
            stack([self._experiments[one].system for one in places]), self._device
        )

    def _decide(self, places: Sequence[int], systems: EdgeSystem, short: Sequence[int]) -> None:
        """Decide a window of the runs that are short, among those of one program."""
        counts = np.array([_WINDOW if one in short else 0 for one in places])
        found = self._rounds(places, systems, counts)
        for row, one in enumerate(places):
            rounds = [pick(found, (row, turn)) for turn in range(counts[row])]
            self._ahead[one] += rounds
            self._decided[one] += len(rounds)
            if rounds:
                self._states[one] = rounds[-1][0]

    def first_round(self) -> SystemRound:
        """The first round of a single run, alone. Taking rounds decides it again."""
        ((places, systems),) = self._groups
        return pick(self._rounds(places, systems, np.array([1])), (0, 0))[1]

    def _rounds(
        self, places: Sequence[int], systems: EdgeSystem, counts: np.ndarray
    ) -> NetworkRound:
        """So many next rounds of runs of one program, leaves ``[R, W, ...]``."""
        inputs = self._inputs(places, counts)
        policy = self._experiments[places[0]].policy
        return jax.device_get(_decide_window(systems, *inputs, policy=policy))

    def _inputs(self, places: Sequence[int], counts: np.ndarray) -> tuple:
        """States, keys and numbers of the next rounds, as of :func:`_decide_window`."""
        keys = [
            network_keys(self._experiments[one], self._decided[one] + np.arange(_WINDOW))
            for one in places
        ]
        states = stack([self._states[one] for one in places])
        return jax.device_put((states, jnp.stack(keys), counts), self._device)

    def lower(self) -> jax.stages.Lowered:
        """The program that decides the first run, to compile it."""
        places, systems = self._groups[0]
        inputs = self._inputs(places, np.zeros(len(places), int))
        policy = self._experiments[places[0]].policy
        return _decide_window.lower(systems, *inputs, policy=policy)


def decide_mode_and_cut(experiment: Experiment, console: Console | None = None) -> Experiment:
    """The experiment with the mode and the blocks at the edge server that a first round decides.

    Several hosts all call this alike; the first one tells the ``console``.
    Source: docs/system-model.md, sections 16 and 22.
    """
    config, policy = experiment.config, experiment.policy
    name, chooses = config["policy"]["name"], isinstance(policy, ModePolicy)
    modes = policy.modes if chooses else (Mode(name, policy, policy_entry(name)),)
    cuts = {mode: cuts_of(config, mode.name) for mode in modes}
    if not chooses and cuts[modes[0]] is None:
        return experiment
    trials = [
        (mode, int(cut))
        for mode, own in cuts.items()
        for cut in ([experiment.server_blocks] if own is None else np.unique(own))
    ]

    def in_mode(mode: Mode, system: EdgeSystem) -> Experiment:
        own = {**config, "policy": {**config["policy"], "name": mode.name}}
        return dataclasses.replace(experiment, config=own, policy=mode.policy, system=system)

    start = initial_network(experiment)

    def value(mode: Mode, cut: int) -> TrialValue:
        tried = in_mode(mode, try_cut(experiment.system, cut))
        first = NetworkAhead([tried], [start], [0]).first_round()
        budgets = budgets_of_trial(mode, experiment.system) if chooses else None
        return trial_value(first.cost, first.violations, budgets)

    # One after the other, by the programs that decide the run's rounds.
    decided = hosts.on_first(lambda: int(best_trial(stack([value(*trial) for trial in trials]))))
    mode, cut = trials[decided]
    if console is not None and hosts.is_first():
        if chooses:
            others = ", ".join(other.name for other in modes if other is not mode)
            console.print(f"the first round chooses the mode {mode.name} before {others}")
        if cuts[mode] is not None:
            blocks = config["model"]["encoder_blocks"]
            console.print(f"the edge server holds the last {cut} of {blocks} encoder blocks")
    return in_mode(mode, experiment.system.with_cut(cut))


def round_latencies_s(experiment: Experiment) -> Iterator[float]:
    """Latency of every round of a training run, without end and without learning."""
    experiment = decide_mode_and_cut(experiment)
    network = NetworkAhead([experiment], [initial_network(experiment)], [0])
    for _ in itertools.count():
        ((_, happened),) = network.take([1])[0]
        yield float(happened.cost.latency_s)


# The decision of one network runs fast and compiles slowly: on a CPU in half the time without
# the emitters of fusions.
@functools.partial(jax.jit, static_argnames="policy", compiler_options=WITHOUT_FUSION_EMITTERS)
def _decide_window(
    systems: EdgeSystem, states: SystemState, keys: Array, counts: Array, *, policy: Policy
) -> NetworkRound:
    """The next rounds of several networks, one network after the other.

    Args:
      systems, states: of the networks, leaves ``[R, ...]``.
      keys: of the rounds, ``[R, W]``.
      counts: rounds to decide, ``[R]``; what comes after them is 0.
      policy: decides.

    Returns:
      Leaves ``[R, W, ...]``.
    """

    def decide(given: tuple[EdgeSystem, SystemState, Array, Array]) -> NetworkRound:
        system, start, keys, count = given
        decides = settled(policy, system)

        def simulate(state: SystemState, key: Array) -> NetworkRound:
            return simulate_round(Environment(system, state, key), decides)

        def one(place: Array, carry: tuple[SystemState, NetworkRound]) -> tuple:
            state, rounds = carry
            found = simulate(state, keys[place])
            return found[0], jax.tree.map(lambda rows, new: rows.at[place].set(new), rounds, found)

        like = jax.eval_shape(simulate, start, keys[0])
        empty = jax.tree.map(lambda leaf: jnp.zeros((len(keys), *leaf.shape), leaf.dtype), like)
        return jax.lax.fori_loop(0, count, one, (start, empty))[1]

    return jax.lax.map(decide, (systems, states, keys, counts))


def _program(experiment: Experiment) -> Hashable:
    """Equal for runs that one program can decide."""
    leaves, structure = jax.tree.flatten(experiment.system)
    return experiment.policy, structure, tuple(np.shape(leaf) for leaf in leaves)


def cpus() -> list[Any]:
    """The CPU's devices, of which programs make one or more."""
    return jax.local_devices(backend="cpu")
