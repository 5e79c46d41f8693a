"""What a sweep says at its points: estimates over the networks, ready for an axis."""

from typing import NamedTuple

import numpy as np

from experiments.sweep_files import SweepResult
from figures import style
from figures.comparison import kept, round_means
from figures.estimates import Estimate, mean_estimate, median_estimate

STATISTICS = {"median": median_estimate, "mean": mean_estimate}
_LABELS = {
    "latency_s": "Latency of a round [s]",
    "compute_latency_s": "Compute latency [s]",
    "energy_j": "Energy of a round [J]",
    "device_memory_bytes": "Fullest device [{unit}]",
    "divergence_over_target": "Divergence / target [–]",
}


class Panel(NamedTuple):
    """One amount.

    Attributes:
      label: of its axis, with its unit.
      told: estimates by policy in that unit, arrays ``[points]``.
    """

    label: str
    told: dict[str, Estimate]

    def limited_by(self) -> np.ndarray:
        """Numbers that the axis has to hold; lower ends of intervals may leave it."""
        return np.concatenate([part for each in self.told.values() for part in each[::2]])


def sweep_panels(result: SweepResult, statistic: str) -> dict[str, Panel]:
    """Panels by metric, latency first.

    Args:
      result: a sweep.
      statistic: a key of ``STATISTICS``.
    """
    points = [round_means(kept(point)) for point in result.points]
    estimate = STATISTICS[statistic]
    panels = {}
    for metric, label in _LABELS.items():
        told = {}
        for name in points[0]:
            parts = [estimate(point[name][metric]) for point in points]
            told[name] = Estimate(*map(np.stack, zip(*parts, strict=True)))
        panels[metric] = Panel(label, told)
    panels["device_memory_bytes"] = _in_unit(panels["device_memory_bytes"])
    return panels


def _in_unit(panel: Panel) -> Panel:
    """Bytes in a unit in which they read well."""
    most = panel.limited_by()
    unit_bytes, unit = style.memory_unit(np.max(most, where=np.isfinite(most), initial=0.0))
    told = {
        name: Estimate(*(part / unit_bytes for part in each)) for name, each in panel.told.items()
    }
    return Panel(panel.label.format(unit=unit), told)
