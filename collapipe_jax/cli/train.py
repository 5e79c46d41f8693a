r"""Train a model over a simulated network, or several side by side.

    collapipe train --config=default --workdir=runs/default
    collapipe train --config=default --workdir=runs/default --resume
    collapipe train --config=classification --config.task.train=a.csv \
        --config.task.test=b.csv --workdir=runs/own --linear-baseline
    collapipe train --model=MODEL --data=train.jsonl --test=test.jsonl
    collapipe train --config=quickstart --workdir=runs/rates --seeds=4 \
        --sweep training.client_learning_rate=4e-3,8e-3

Any key may be set on the way: ``--config.control.v=30``. Draw the figures afterwards
with ``collapipe figures --workdir=runs/default``.

With --model a published model is fine-tuned: its folder and the file of --data give all keys, which
are printed. --lora=8 trains adapters alone, and --dry-run shows who would hold what. Results are in
runs/MODEL-DATA unless --workdir names a folder; with --test a linear model is scored, too.

With --sweep or --seeds every combination is a run in ``runs/`` of the workdir, as ``collapipe
sweep`` writes axes. Runs that differ in values alone train together in one program, spread over
all devices. The same command goes on with what is missing. Several processes share the runs with
--shard=i/n, or with --cluster, which starts them. For a single run --cluster starts its --hosts.
"""

import argparse
import contextlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import add_sweep, given_of, make_parser, refuse_given
from collapipe_jax.cli.plan import plan_round
from collapipe_jax.cli.shards import CLUSTER, SHARD, is_done, read_shards, refuse_without_cluster
from collapipe_jax.core.console import (
    console_for_tables,
    make_table,
    setting_text,
    tell_phase,
    value_text,
)
from collapipe_jax.core.errors import InputError, InputWarning, collect
from collapipe_jax.core.files import own_share, write_sealed
from collapipe_jax.core.statistics import interval_text, mean_interval
from collapipe_jax.edge.policies.registry import policy_entry
from collapipe_jax.learning.tasks.task import FINAL_SCORES
from collapipe_jax.runs import hosts
from collapipe_jax.runs.config.experiment import Experiment, build_experiment, check_experiment
from collapipe_jax.runs.config.files import parse_overrides, read_values
from collapipe_jax.runs.config.finetuning import fine_tuning
from collapipe_jax.runs.config.sweeps import file_axes, read_axis, read_sweep
from collapipe_jax.runs.results.checkpoints import newest_step
from collapipe_jax.runs.results.experiment import open_workdir, read_summary
from collapipe_jax.runs.training.loop import check_shared, telling_what_is_saved, train
from collapipe_jax.runs.training.network_ahead import decide_mode_and_cut

_SWEEP: dict[str, Any] = {
    "seeds": (1, "number of seeds"),
    "at-once": (0, "most runs of a sweep that train together (default: all)"),
}
_TUNING: dict[str, Any] = {
    "config": "",
    "workdir": "",
    "model": ("", "folder of a published BERT, Llama or Qwen, to be fine-tuned on --data"),
    "data": ("", "file to fine-tune on: texts, with answers, labels or tags"),
    "test": (
        "",
        "file of that form to score at the end (masked_lm: none); else validation is",
    ),
    "lora": (0, "rank of adapters; 0 trains all parameters"),
}
_OF_MANY = {**_SWEEP, **SHARD, **{name: CLUSTER[name] for name in ("shards", "workers")}}
"""Options of runs that share their work."""
_WIDTH = 100


def main(argv: Sequence[str]) -> None:
    """Build the experiment, train, and print the summary; or all of a sweep."""
    parser = make_parser(__doc__, **_TUNING, **_SWEEP, **SHARD, **CLUSTER)
    add_sweep(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run in the workdir")
    words = "also score a linear model on the test set (default: with --model and --test)"
    either = argparse.BooleanOptionalAction
    parser.add_argument("--linear-baseline", action=either, help=words)
    dry = "print the decision of a first round, its time and energy, and train nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument("--coordinator", help="ADDRESS:PORT of the first host, or auto")
    parser.add_argument("--hosts", type=int, help="how many there are")
    parser.add_argument("--host", type=int, help="which of them this one is, from 0")
    where = "ADDRESS:PORT that the first host listens at (default: --coordinator if in digits)"
    parser.add_argument("--bind", help=where)
    options, overrides = parser.parse_known_args(argv)
    _check_tuning(options)
    if not options.workdir:
        options.workdir = f"runs/{Path(options.model).resolve().name}-{Path(options.data).stem}"
    if options.sweep or options.seeds != 1:
        _train_sweep(argv, options, overrides)
        return
    remedy = "Add --sweep or --seeds, or leave it out"
    refuse_given(options, _OF_MANY, "not of a single run", remedy)
    if options.cluster is not None:
        _train_on_hosts(argv, options, overrides)
        return
    refuse_without_cluster(options)
    with _join(options):
        _train_one(options, overrides)


def _train_one(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Train one run, and print its summary."""
    console, path = Console(), Path(options.workdir) / "summary.json"
    experiment = hosts.on_every(lambda: _build(options, overrides))
    if options.dry_run:
        _show_round(experiment)
        return
    wants_linear = options.linear_baseline
    if wants_linear is None:
        wants_linear = bool(options.model and options.test)
    scores = experiment.task.linear_scores if wants_linear else None
    with telling_what_is_saved([experiment], [options.workdir], options.resume):
        if scores and hosts.is_first():
            tell_phase(console, "training a linear model of the same texts")
        linear = hosts.on_first(lambda: scores(experiment.corpus)) if scores else {}
        run = train(experiment, options.workdir, resume=options.resume, console=console)
    if not hosts.is_first():
        return
    summary = run.summary | linear
    if linear:
        write_sealed(path, summary)
    _print_summary(summary)
    warn_of_better_linear_model(run.summary, linear)


def _show_round(experiment: Experiment) -> None:
    """Print the decision of a round at mean gains: who holds what, its time, energy and memory."""
    if policy_entry(experiment.config["policy"]["name"]).by_clients:
        name = experiment.config["policy"]["name"]
        remedy = "Leave it out, or take a pipeline such as dssra"
        raise InputError("--dry-run", True, f"{name} decides no pipeline", remedy)
    console = console_for_tables(_WIDTH)
    problem = decide_mode_and_cut(experiment, console).system.mean_problem
    cuts = [int(problem.workload.server_blocks)]
    _, _, (table, summary, _) = plan_round(problem, experiment.policy, cuts)
    console.print(table, summary, sep="\n", highlight=False)


def warn_of_better_linear_model(summary: Mapping[str, Any], linear: Mapping[str, Any]) -> None:
    """Warn where a linear model of the same texts has a better score: nothing else would say so."""
    for name, score in linear.items():
        ours = summary.get(name.removesuffix("_linear"))
        if score is not None and ours is not None and ours < score:
            text = (
                f"{name.removesuffix('_linear')} = {ours:.4g}: a linear model of the same texts "
                f"reaches {score:.4g}. Try a lower training.client_learning_rate, or more "
                "training.rounds"
            )
            warnings.warn(f"{text}.", InputWarning, stacklevel=2)
            return


def _print_summary(summary: Mapping[str, Any]) -> None:
    console = Console()
    for name, value in summary.items():
        console.print(f"{name:32} {value_text(value)}", soft_wrap=True, highlight=False)


def _train_on_hosts(
    argv: Sequence[str], options: argparse.Namespace, overrides: Sequence[str]
) -> None:
    """Start the hosts of one run, and wait for its end."""
    from collapipe_jax.cli.cluster import read_hosts  # brings submitit

    own = {"coordinator": None, "host": None, "bind": None}
    refuse_given(options, own, "--cluster tells the hosts where they are", "Leave it out")
    run = read_hosts(options)
    experiment = _build(options, overrides)
    check_shared(experiment, options.hosts)
    folder = open_workdir(options.workdir, experiment.config, resume=True)

    def missing() -> int:
        """Rounds after the newest checkpoint; one more for the test of the trained model."""
        if (folder / "summary.json").exists():
            return 0
        done = newest_step(folder / "checkpoints") or 0
        return experiment.config["training"]["rounds"] + 1 - done

    run(folder, argv, missing)
    _print_summary(read_summary(folder, "training"))


def _train_sweep(
    argv: Sequence[str], options: argparse.Namespace, overrides: Sequence[str]
) -> None:
    """Train at every point, and write one summary."""
    from collapipe_jax.runs.training import train as sweeps  # brings the store

    alone = ("linear_baseline", "coordinator", "hosts", "host", "bind")
    for name, value in given_of(**{name: getattr(options, name) for name in alone}).items():
        remedy = "Leave it out, or train one run at a time"
        raise InputError(f"--{name.replace('_', '-')}", value, "not with a sweep", remedy)
    axes = [*file_axes(options.config), *(read_axis("--sweep", text) for text in options.sweep)]
    keys = parse_overrides(overrides)
    sweep = read_sweep(options.config, keys, axes, options.seeds, check_experiment)
    shard, start = read_shards("train", argv, options)
    results = sweeps.open_training(options.workdir, sweep)
    start(results, sweeps.part_names(sweep))
    console = console_for_tables(_WIDTH)
    with own_share(results.folder, *shard):
        missing = sweeps.train_points(results, sweep, console, shard, options.at_once)
    if not is_done(missing, shard, console.print):
        return
    summary = sweeps.summarise_points(results, sweep)
    path = results.write_summary(summary)
    console.print(_score_table(sweeps.by_setting(summary["points"])))
    print(f"written: {path}")


def _score_table(
    settings: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
) -> Table:
    """Final scores and simulated time at every setting, means over its seeds."""
    first = settings[0][1][0]
    names = [
        name
        for name, value in first.items()
        if name.startswith(FINAL_SCORES) and type(value) in (int, float)
    ]
    names.append("simulated_time_s")
    rows = []
    for at, runs in settings:
        values = ([run.get(name) for run in runs] for name in names)
        cells = (interval_text(mean_interval(np.array(own, float)), "{:.4g}") for own in values)
        rows.append((*map(setting_text, at.values()), *cells))
    return make_table((*settings[0][0], *names), rows, left=len(settings[0][0]) - 1)


def _check_tuning(options: argparse.Namespace) -> None:
    """Refuse a run without a configuration, and half of the options of fine-tuning."""
    with collect() as step:
        for name in ("data", "test", "lora"):
            with step():
                if (value := getattr(options, name)) and not options.model:
                    raise InputError(f"--{name}", value, "of fine-tuning", "Give --model, too")
        with step():
            if not (options.workdir or options.model):
                remedy = "Name a folder, such as runs/default"
                raise InputError("--workdir", "", "no folder for the results", remedy)
        with step():
            if options.model and not options.data:
                problem, remedy = "nothing to fine-tune it on", "Give a file as --data"
                raise InputError("--model", options.model, problem, remedy)
        with step():
            if options.model and (options.sweep or options.seeds != 1):
                problem, remedy = "one run", "Leave out --sweep and --seeds"
                raise InputError("--model", options.model, problem, remedy)
        with step():
            if options.model and options.config:
                problem = "all keys follow from --model and --data"
                raise InputError("--config", options.config, problem, "Leave one of them out")
            if not (options.model or options.config):
                remedy = "Give one, such as quickstart; or --model and --data"
                raise InputError("--config", "", "no configuration", remedy)


def _build(options: argparse.Namespace, overrides: Sequence[str]) -> Experiment:
    """The experiment of a configuration; all wrong keys and files are reported at once."""
    name, values = options.config, dict[str, Any](parse_overrides(overrides))
    if options.model:
        tuning = fine_tuning(options.model, options.data, options.test, options.lora, values)
        name, values = tuning.config, tuning.values
        if hosts.is_first():
            tell_phase(Console(), tuning.summary)
            tell_phase(Console(), "reading the model and the texts")
    config, unknown = read_values(name, values)
    experiment = build_experiment(config, unknown)
    if options.linear_baseline and experiment.task.linear_scores is None:
        problem = f"there is no linear model of {config.task.kind}"
        remedy = "Leave it out, or set task.kind to classification or tagging"
        raise InputError("--linear-baseline", True, problem, remedy)
    return experiment


def _join(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Become one of several hosts where that is asked for."""
    if options.coordinator is not None:
        return hosts.join(options.coordinator, options.hosts, options.host, options.bind)
    remedy = "Give --coordinator=ADDRESS:PORT of the first host"
    of_hosts = {"hosts": None, "host": None, "bind": None}
    refuse_given(options, of_hosts, "has no meaning without a coordinator", remedy)
    return contextlib.nullcontext()
