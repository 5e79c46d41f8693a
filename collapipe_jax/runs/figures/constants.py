"""Constants of the convergence bound, estimated at the model, against rounds.

Of runs with ``evaluation.estimate_every_rounds``. The estimate of the heterogeneity is the largest
among clusters, and the thin line their weighted mean.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import RunRecord

_LABELS = {
    "gradient_variance": r"Variance $\sigma^2$ [nats²]",
    "gradient_heterogeneity": r"Heterogeneity $\zeta^2$ [nats²]",
    "gradient_norm_squared": r"Gradient $\Vert\nabla F\Vert^2$ [nats²]",
    "smoothness": r"Smoothness $L_s$ [nats]",
}
_THIN = {"linewidth": 0.7, "alpha": 0.6}


def has_estimates(record: RunRecord) -> bool:
    """Whether a run estimated the constants."""
    return all(name in record.history for name in _LABELS)


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
    """Draw one panel a constant, all runs in it; rounds without an estimate are passed over.

    Raises:
      InputError: if one of them has no estimates.
    """
    for record, label in zip(records, style.run_labels(records), strict=True):
        if not has_estimates(record):
            remedy = "Train with evaluation.estimate_every_rounds above 0"
            raise InputError("--workdir", label, "the run estimated no constants", remedy)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.6)
    panels = figure.subplots(2, 2, sharex=True)
    looks = list(zip(style.run_looks(records), (record.history for record in records), strict=True))
    for axes, (name, label) in zip(panels.flat, _LABELS.items(), strict=True):
        for look, history in looks:
            style.plot_known(axes, history["round"], history[name], look)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0.0)
    for look, history in looks:
        thin = {"marker": None, "clip_on": True, **_THIN}
        mean = history["mean_gradient_heterogeneity"]
        style.plot_known(panels[0, 1], history["round"], mean, look, **thin)
    for axes in panels[1]:
        style.round_axis(axes)
    mean = Line2D([], [], color=style.GREY, label="mean over clusters (thin)", **_THIN)
    handles = [*style.run_handles(records), mean]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))
    return figure
