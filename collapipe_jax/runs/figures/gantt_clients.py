"""A round of a data-parallel policy: what every client does when.

Without ``--round`` the last round is drawn. A row is a client; local steps are drawn together,
computing before messages, though each step does both. Pipelines have
:mod:`collapipe_jax.runs.figures.gantt`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.gantt import index_of_round
from collapipe_jax.runs.results.checkpoints import RunRecord

_LOOKS = {
    "download": style.PART_LOOKS["download"],
    "computing": style.PART_LOOKS["iterations"],
    "activations and gradients": style.fill(style.ORANGE, "//////"),
    "upload": style.PART_LOOKS["upload"],
}
_ROW_IN = 0.13


class ClientRound(NamedTuple):
    """Clients of a round, cluster by cluster."""

    number: int
    names: list[str]
    parts_s: np.ndarray  # by part, [clients, 4]; 0 for one that never ends


def has_clients(record: RunRecord) -> bool:
    """Whether a run's policy was a data-parallel one and anybody ever took part."""
    return "samples" in record.history and bool((record.history["samples"] > 0).any())


def client_round(record: RunRecord, round_number: int | None) -> ClientRound:
    """The clients that took part in a round; ``None`` is the last in which anybody did.

    Raises:
      InputError: no such round, or nobody took part.
    """
    if not has_clients(record):
        raise InputError("policy", record.policy, "the run has no clients", "Draw another run")
    takes_part = record.history["samples"] > 0
    if round_number is None:
        index = int(np.flatnonzero(takes_part.any(axis=(1, 2)))[-1])
    else:
        index = index_of_round(record, round_number)
    places = np.argwhere(takes_part[index])
    if not len(places):
        raise InputError("--round", round_number, "everybody sat out", "Choose another round")
    names = [f"cluster {cluster}, device {device + 1}" for cluster, device in places]
    if "control_unit_memory_bytes" in record.history:
        names = [f"cluster {cluster}, control unit" for cluster, _ in places]
    parts_s = record.history["client_parts_s"][index][takes_part[index]]
    return ClientRound(
        int(record.history["round"][index]), names, np.where(np.isfinite(parts_s), parts_s, 0.0)
    )


@style.styled
def draw(records: Sequence[RunRecord], round_number: int | None = None) -> Figure:
    """Draw one round, the last by default, a panel a run on one time axis.

    Raises:
      InputError: no such round, or nobody took part.
    """
    picked = [client_round(record, round_number) for record in records]
    chart_in = [_ROW_IN * len(each.names) for each in picked]
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 0.5 + sum(chart_in) + 0.5 * len(picked))
    panels = figure.subplots(len(picked), 1, height_ratios=chart_in, sharex=True, squeeze=False)
    longest_s = max(each.parts_s.sum(axis=1).max() for each in picked)
    for axes, each, label in zip(panels[:, 0], picked, style.run_labels(records), strict=True):
        _chart(axes, each, longest_s)
        axes.set_title(f"{label}, round {each.number}", loc="left")
    panels[-1, 0].set_xlabel(f"Time since the round began [{style.time_unit(longest_s)[1]}]")
    seen = np.any([each.parts_s.any(axis=0) for each in picked], axis=0)
    # Whole models exchange no activations.
    looks = {name: _LOOKS[name] for name, is_seen in zip(_LOOKS, seen, strict=True) if is_seen}
    handles = style.fill_handles(looks)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _chart(axes: Axes, picked: ClientRound, longest_s: float) -> None:
    """Bars of all clients, end to end."""
    unit_s, _ = style.time_unit(longest_s)
    place = -np.arange(len(picked.names))
    start = np.zeros(len(place))
    for look, width in zip(_LOOKS.values(), picked.parts_s.T / unit_s, strict=True):
        axes.barh(place, width, left=start, height=0.8, **look)
        start += width
    axes.set_yticks(place, labels=picked.names)
    axes.set_ylim(0.5 - len(place), 0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
