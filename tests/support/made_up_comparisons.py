"""Comparisons and sweeps made up for figures, and what any figure must be."""

import itertools
import json
import math

import numpy as np
from matplotlib.text import Text

from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.realisations import (
    Case,
    Realisations,
    coordinates,
    load_realisations,
    parts_of,
)
from figures import gap
from support.drawing import assert_units, rendered

EIGHT = (
    "dssra",
    "static_pipeline",
    "titanic",
    "titanic_pipelined",
    "greedy",
    "random",
    "vanilla_fl",
    "splitfed",
)
CLUSTERS, DEVICES, BLOCKS = 2, 3, 12


def make_values(rng, networks, rounds):
    """Realisations of a policy; latencies and divergences are heavy-tailed."""
    shape = (networks, rounds)
    parts_s = rng.lognormal(0, 2, (networks, 1, 1)) * rng.uniform(1, 9, (*shape, 5))
    held = rng.multinomial(CLUSTERS * rounds * 2, rng.dirichlet(np.ones(BLOCKS)), networks)
    held = np.concatenate([np.zeros((networks, 1)), held], axis=1)
    queue = np.maximum(rng.normal(0, 1, shape).cumsum(axis=1), 0)
    return {
        "latency_s": parts_s.sum(axis=2),
        "compute_latency_s": rng.uniform(20, 60, shape),
        "parts_s": parts_s,
        "energy_j": rng.uniform(500, 900, shape),
        "divergence": 1e-3 * rng.lognormal(0, 6, (networks, 1)) * np.ones(shape),
        "device_memory_bytes": rng.uniform(1e9, 4e9, shape),
        "worst_energy_queue": queue,
        "divergence_queue": 10 ** (4 * queue) - 1,
        "blocks_held": held,
        "memory_by_blocks": 3.5e8 * held * np.arange(BLOCKS + 1),
    }


def unlabelled(name, values):
    """An array as a variable; what figures read does not depend on the names of its axes."""
    axes = [f"{name}_{index}" for index in range(1, values.ndim)]
    return Variable(" ".join(["realisation", *axes]), values)


def write_points(folder, experiment, config, options, points):
    """What a Monte-Carlo experiment leaves; points have networks, and arrays by policy and V."""
    results = Results.create(folder, experiment, options, config, coordinates(options))
    for name, part in parts_of(options).items():
        networks, cases = points[part.point]
        own = {v: values for (policy, v), values in cases.items() if policy == part.policy}
        values = own[part.v or next(iter(own))] if part.policy else networks
        rows = slice(part.place.start, part.place.start + part.place.chunk)
        chunk = {field: unlabelled(field, value[rows]) for field, value in values.items()}
        results.write(name, chunk, part.place)
    return folder


def write_realisations(folder, experiment, config, options, networks, cases):
    """One point alone."""
    return write_points(folder, experiment, config, options, [(networks, cases)])


def made_up_point(names=EIGHT, networks=8, rounds=5, change=None, seed=0):
    """Networks of a comparison and its arrays by policy and V.

    ``change(arrays of the networks, arrays by policy)`` may alter what is written.
    """
    rng = np.random.default_rng(seed)
    drawn = {
        "reference_latency_s": np.ones(networks),
        "can_run": np.ones((networks, CLUSTERS), bool),
        "energy_budget_j": rng.uniform(50, 150, (networks, CLUSTERS, DEVICES + 1)),
        "divergence_target": rng.uniform(0.005, 0.01, networks),
        "memory_limit_bytes": 2.0**30 * rng.choice([4, 8], (networks, CLUSTERS, DEVICES)),
    }
    values = {name: make_values(rng, networks, rounds) for name in names}
    if change is not None:
        change(drawn, values)
    return drawn, {(name, 3.0): own for name, own in values.items()}


def made_up_options(names=EIGHT, networks=8, rounds=5, **ignored):
    """In chunks of 3 networks."""
    options = {"rounds": rounds, "realisations": networks, "chunk": 3}
    return options | {"policies": list(names)}


CONFIG = {
    "control": {"v": 3.0},
    "learning": {"bound": "one_step", "gradient_variance": 1.0, "gradient_heterogeneity": 0.5},
    "training": {"batch": 16},
}


def write_comparison(folder, **keywords):
    """A comparison as ``collapipe compare`` leaves it."""
    options = made_up_options(**keywords)
    return write_points(folder, "compare", CONFIG, options, [made_up_point(**keywords)])


def compared(folder, **keywords):
    return load_realisations(write_comparison(folder, **keywords), "compare")


def write_sweep(
    folder,
    values=(5.0, 10.0, 40.0),
    axis="D2E bandwidth [MHz]",
    log=True,
    further=(),
    **keywords,
):
    """A sweep; ``further`` axes are pairs of a name and values."""
    axes = [{"name": axis, "columns": {axis: list(values)}, "label": axis, "log": log}]
    for name, own in further:
        axes.append({"name": name, "columns": {name: list(own)}, "label": "", "log": False})
    count = math.prod(len(one["columns"][one["name"]]) for one in axes)
    options = made_up_options(**keywords) | {"axes": axes, "points": [{}] * count, "sizes": {}}
    points = [made_up_point(seed=index, **keywords) for index in range(count)]
    return write_points(folder, "sweep", CONFIG, options, points)


def write_gaps(folder, gaps, loss=0.1):
    folder.mkdir(exist_ok=True)
    for number, value in enumerate(gaps):
        row = {"network": number, "dssra": 2.0 * (1 + value), "dssra_tuned": 2.0}
        row |= {"exhaustive": 2.0, "lower_bound": 1.9, "loss": loss}
        with (folder / gap.FILE).open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    return folder


def break_first(drawn, values):
    """The first network of every policy but the last never ends its third round."""
    for name in list(values)[:-1]:
        for field in ("latency_s", "parts_s", "energy_j", "divergence", "divergence_queue"):
            values[name][field][0, 2:] = np.inf


def break_all(drawn, values):
    for own in values.values():
        for field in ("latency_s", "parts_s", "energy_j", "divergence", "divergence_queue"):
            own[field][:] = np.inf


CASES = {
    "one_network": {"networks": 1},
    "one_round": {"rounds": 1, "networks": 7},
    "some_infinite": {"change": break_first},
    "all_infinite": {"change": break_all},
}


def words(figure):
    """Every text that is drawn, with its box."""
    hidden = set()
    for axis in itertools.chain(*((axes.xaxis, axes.yaxis) for axes in figure.axes)):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_major_ticks() + axis.get_minor_ticks():
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if text not in hidden and text.get_visible()]
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


def assert_readable(figure):
    """Units everywhere, no word too small, on another, or out of the page."""
    assert_units(rendered(figure))
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 7
    shown, page = words(figure), figure.bbox.padded(1.0)
    for text, box in shown:
        assert page.contains(box.x0, box.y0), text
        assert page.contains(box.x1, box.y1), text
    for (one, first), (other, second) in itertools.combinations(shown, 2):
        assert not first.padded(-0.5).overlaps(second.padded(-0.5)), (one, other)


def row_artists(axes, row):
    """Dots, median, its interval, mean and its interval of a row, as values of x."""
    lines = [
        line
        for line in axes.lines
        if len(line.get_ydata())
        and abs(line.get_ydata()[0] - row) < 0.5
        and line not in rulers(axes)
    ]
    marked = {line.get_marker(): line.get_xdata() for line in lines if line.get_marker() != "None"}
    spans = [line.get_xdata() for line in lines if line.get_marker() == "None"]
    return marked, spans


def rulers(axes):
    return [line for line in axes.lines if line.get_transform() != axes.transData]


def random_loop(v, networks=40, rounds=100, seed=0):
    """A made-up run that obeys its bounds: latency falls as 1 / V, backlogs rise as V."""
    rng = np.random.default_rng(seed)
    optimum, size = rng.uniform(0.5, 1.0, networks), rng.uniform(0.5, 1.5, networks)
    shape = (networks, 2, 3)

    def values(one):
        return {
            "mean_latency_s": optimum + size / one,
            "latency_over_reference": optimum + size / one,
            "energy_over_budget": np.full(shape, min(1.0, 0.5 + 0.01 * one)),
            "divergence_over_target": np.full(networks, 0.8),
            "final_energy_queue": np.zeros(shape),
            "final_divergence_queue": np.zeros(networks),
            "mean_energy_queue": np.full(shape, 0.1 * one) * size[:, None, None],
            "mean_divergence_queue": np.zeros(networks),
            "energy_drift": np.full(networks, 3.0),
            "divergence_drift": np.full(networks, 0.2),
            "lifted_cost": np.full(networks, 0.3),
            "absent_rounds": np.zeros((networks, 2)),
        }

    config = {
        "dynamics": {"availability": 1.0, "speed_m_per_s": 0.0},
        "network": {"clusters": 2, "devices": 2},
        "control": {
            "energy_queue_floor": 0.05,
            "divergence_queue_floor": 0.4,
        },  # 0.7 over all limits
    }
    options = {"rounds": rounds, "realisations": networks, "chunk": networks}
    options |= {"policies": ["made_up"], "v": list(v)}
    drawn = {
        "reference_latency_s": np.ones(networks),
        "can_run": np.ones((networks, 2), bool),
        "control_unit_floor": np.full((networks, 2), 0.3),
        "device_floor": np.full((networks, 2), 0.2),
        "least_final_queue": np.zeros((networks, 2)),
    }
    cases = [Case("made_up", one, values(one)) for one in v]
    return Realisations({"config": config, "options": options}, drawn, cases)


def write_loop(folder, v=(1.0, 10.0, 100.0)):
    """The same on file."""
    result = random_loop(v)
    cases = {(case.policy, case.v): case.values for case in result.cases}
    return write_realisations(
        folder, "closed_loop", **result.settings, networks=result.networks, cases=cases
    )
