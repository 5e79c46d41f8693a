"""All measurements: what each shows, its commands, and how its figures are read from its folder.

Commands run in a shell at the root of the repository, one after another. ``FOLDER`` stands for the
folder of the measurement.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import read_object
from collapipe_jax.core.statistics import mean_interval, median_estimate, reduction_percent
from collapipe_jax.edge.policies.registry import MODES
from collapipe_jax.runs.results.checkpoints import load_race
from collapipe_jax.runs.results.realisations import load_points
from collapipe_jax.runs.studies.comparison import round_means
from collapipe_jax.runs.studies.race import ROWS

Figures = dict[str, Any]

_EDGE = ("collapipe_jax/edge", "collapipe_jax/runs/studies", "collapipe_jax/runs/config")
_LEARNING = ("collapipe_jax/learning", "collapipe_jax/runs/training", "collapipe_jax/runs/config")
_METRICS = ("latency_s", "descent_s", "compute_latency_s", "device_memory_bytes", "energy_j")
_LIMITS = ("memory", "server_memory", "networks_over_energy", "divergence")
_RACERS = (
    "dssra,static_pipeline,titanic_pipelined,vanilla_fl,hierarchical_fl,splitfed,control_unit_fl"
)


class Entry(NamedTuple):
    """A measurement."""

    shows: str
    commands: tuple[str, ...]
    minutes: float  # on 2 cores
    read: Callable[[Path], Figures]  # figures from the folder
    measures: tuple[str, ...] = _EDGE  # sources that they are figures of
    tiny: str = ""  # options that make every command small
    needs: str = ""  # what not every machine has


# Figures from a folder.


def of_object(path: Path) -> Figures:
    """A JSON object that a program left."""
    found = read_object(path)
    if found is None:
        raise InputError("folder", str(path), "missing or damaged", "Remove the folder, run anew")
    return found


def of_comparison(folder: Path) -> Figures:
    """Every policy of a comparison, and what ``dssra`` saves against the others in percent."""
    return _compared(of_object(folder / "summary.json"))


def of_comparisons(first: str, *others: str) -> Callable[[Path], Figures]:
    """The comparison of one folder, and the policies of others by name."""

    def read(folder: Path) -> Figures:
        return of_comparison(folder / first) | {
            name: of_comparison(folder / name)["policies"] for name in others
        }

    return read


def of_sweep(folder: Path) -> Figures:
    """The comparisons of a sweep, one a point."""
    found = of_object(folder / "summary.json")
    return {"points": [{"at": point["at"]} | _compared(point) for point in found["points"]]}


def of_map(folder: Path) -> Figures:
    """Axes of a map and the winner of every cell."""
    found = of_object(folder / "summary.json")
    kept = ("winner", "runner_up", "margin_percent", "faster_share")
    cells = [{key: cell[key] for key in kept} for cell in found["cells"]]
    return {key: found[key] for key in ("x", "x_values", "y", "y_values")} | {"cells": cells}


def _compared(summary: Mapping[str, Any]) -> Figures:
    policies = {
        name: {key: own[key] for key in (*_METRICS, "blocks", "keeps_limits", "fastest")}
        | {"participation": own["participation"]["mean"]}
        | {key: own[key] for key in ("modes",) if key in own}
        | {"over": {key: own["violations"][key] for key in _LIMITS}}
        for name, own in summary["policies"].items()
    }
    sizes = {key: summary[key] for key in ("rounds", "realisations", "realisations_left_out")}
    return sizes | {"policies": policies, "saved_percent": summary["reduction_percent"]}


def of_growth(folder: Path) -> Figures:
    """Growth of every policy's latency and energy over the first point of a sweep, in percent.

    By the label of the point; mean and median over the same networks.
    """
    points = of_object(folder / "summary.json")["points"]
    labels = [" ".join(str(value) for value in point["at"].values()) for point in points]
    means = [round_means(point) for point in load_points(folder, "sweep")]
    return {
        label: {
            policy: {
                metric: estimated(-reduction_percent(own[metric], means[0][policy][metric]))
                for metric in ("latency_s", "energy_j")
            }
            for policy, own in policies.items()
        }
        for label, policies in zip(labels[1:], means[1:], strict=True)
    }


def estimated(values: np.ndarray) -> Figures:
    """Mean and median with their intervals."""
    value, *ends = map(float, median_estimate(values))
    return mean_interval(values) | {"median": value, "median_ci95": ends}


def of_race(folder: Path) -> Figures:
    """Test scores, rounds and simulated time of every policy, by seed."""
    policies: dict[str, Figures] = {}
    for run in load_race(folder):
        own = policies.setdefault(run.policy, {"rate": run.rate, "scores": [], "rounds": []})
        own["scores"].append(run.summary[run.headline])
        own["rounds"].append(len(run.record.history["round"]))
        for key, _ in ROWS.values():
            own.setdefault(key, []).append(run.summary[key])
    return {"policies": scored(policies)}


def scored(policies: dict[str, Figures]) -> dict[str, Figures]:
    """The same policies with the mean of their scores, and the first one's lead over them."""
    first = next(iter(policies.values()))["scores"]
    for own in policies.values():
        own["score"] = mean_interval(np.array(own["scores"]))
        own["under_first"] = mean_interval(np.subtract(first, own["scores"]))
    return policies


def of_seeds(folder: Path) -> Figures:
    """Test BLEU and latency of training runs on several seeds, by folder."""
    found = {}
    for own in sorted(folder.iterdir()):
        points = of_object(own / "summary.json")["points"]
        columns = {
            name: [point[name] for point in points] for name in ("test_bleu", "mean_latency_s")
        }
        found[own.name] = columns | {"mean": mean_interval(np.array(columns["test_bleu"]))}
    return found


def of_races(*names: str) -> Callable[[Path], Figures]:
    """The races of folders in a folder, by name."""
    return lambda folder: {name: of_race(folder / name) for name in names}


def of_folders(*names: str) -> Callable[[Path], Figures]:
    """The summaries of folders in a folder, by name."""
    return lambda folder: {name: of_object(folder / name / "summary.json") for name in names}


# The table.

_COMPARE = ".venv/bin/collapipe compare --config=paper --realisations=64"
_DECIDED = (
    "--config.policy.routes=gateways --config.model.min_cluster_blocks={least} "
    "--policies=dssra,dssra_wide,static_pipeline,titanic_pipelined,splitfed,control_unit_split"
)
_CUT = _DECIDED.format(least=1) + ",selected_fl"
_NO_BLOCK = _DECIDED.format(least=0)
_ONE_BLOCK = "--config.policy.cut=1 --policies=splitfed,control_unit_split"
_TOUCHED = "--config.payload.embedding_rows=touched"
_MODES = f"{_COMPARE} --policies=best_mode"
_KEEPS_ONE = "--config.model.min_cluster_blocks=1 --config.policy.cut=1"
_SWEEP = ".venv/bin/collapipe sweep --config=paper"
_FEW = "--rounds=2 --realisations=2"
_BITS = (
    f"{_SWEEP} --policies=dssra,dssra_wide,splitfed,selected_fl --rounds=20 --realisations=64 "
    "--sweep payload.update_number_bits=0,8,4 --config.policy.client_micro_batches=1"
)
_PROBED = (
    "--config=clinc150:plain --config.model.width=64 --config.model.feed_forward_width=256 "
    "--config.model.encoder_blocks=2"
)
_AGAINST_DRIFT = {
    "averaging": "--config.training.client_moments=keep",
    "fedprox": "--config.training.proximal_weight=0.01",
    "averaged_moments": "--config.training.client_moments=average",
    "scaffold": "--config.training.control_variates=True",
}
_WALKERS = "dssra,dssra_wide,dssra_offline,static_pipeline,splitfed,selected_fl"
_SHORT_RUN = "--config.training.rounds=4 --config.training.warmup_steps=2 --seeds=2"


def _race(name: str, score: str, minutes: float, rounds: int, rates: str, *other: str) -> Entry:
    command = _race_command(
        name,
        "FOLDER",
        f"--seeds=5 --rates={rates} --policies={_RACERS}",
        f"--config.training.rounds={rounds} --config.training.warmup_steps=100",
        *other,
    )
    return Entry(
        f"{score} in equal simulated time",
        (command,),
        minutes,
        of_race,
        (*_EDGE, *_LEARNING),
        needs="corpora",
    )


def _dynamic(name: str, *other: str) -> str:
    return _race_command(
        name,
        f"FOLDER/{name}",
        "--config.dynamics.availability=0.8 --config.dynamics.speed_m_per_s=1.4",
        *other,
    )


def _race_command(name: str, folder: str, *other: str) -> str:
    race = ".venv/bin/python -m experiments.studies.race"
    return " ".join((f"{race} --config={name} --workdir={folder} --equal=time", *other))


def _gap(name: str, rates: str) -> str:
    return (
        f".venv/bin/python -m experiments.studies.central_gap --config={name} "
        f"--workdir=FOLDER/{name} --seeds=3 --rates={rates}"
    )


ENTRIES = {
    "quickstart": Entry(
        "a small Transformer trained by two policies on one network",
        (".venv/bin/collapipe quickstart --workdir=FOLDER",),
        3,
        of_race,
        (*_EDGE, *_LEARNING),
    ),
    "policies": Entry(
        "all policies side by side",
        (
            f"{_COMPARE} --rounds=100 --workdir=FOLDER/published "
            "--config.policy.routes=control_units",
            f"{_COMPARE} --rounds=100 --workdir=FOLDER/gateways --config.policy.routes=gateways "
            "--policies=static_pipeline,titanic,titanic_pipelined",
        ),
        20,
        of_comparisons("published", "gateways"),
        tiny=f"{_FEW} --policies=static_pipeline,vanilla_fl",
    ),
    "rivals": Entry(
        "rivals with settings of their own keys, drawn at random",
        (
            ".venv/bin/python -m experiments.studies.rivals --config=paper --draws=200 "
            "--networks=16 --rounds=10 --workdir=FOLDER --config.policy.routes=control_units "
            "--policies=splitfed,control_unit_split,selected_fl,static_pipeline,titanic_pipelined",
        ),
        90,
        lambda folder: of_object(folder / "summary.json"),
        tiny="--draws=1 --networks=2 --rounds=2 --policies=static_pipeline",
    ),
    "cut": Entry(
        "pipelines that decide how many blocks the edge server holds, and SplitFed at two cuts",
        (
            f"{_COMPARE} --rounds=100 --workdir=FOLDER/decided {_CUT}",
            f"{_COMPARE} --rounds=100 --workdir=FOLDER/one_block {_ONE_BLOCK}",
        ),
        20,
        of_comparisons("decided", "one_block"),
        tiny=f"{_FEW} --policies=static_pipeline,splitfed",
    ),
    "no_block": Entry(
        "pipelines that may leave all blocks to the edge server, with whole tables and with rows",
        (
            f"{_COMPARE} --rounds=100 --workdir=FOLDER/tables {_NO_BLOCK}",
            f"{_COMPARE} --rounds=20 --workdir=FOLDER/rows {_NO_BLOCK} {_TOUCHED}",
        ),
        15,
        of_comparisons("tables", "rows"),
        tiny=f"{_FEW} --policies=static_pipeline,splitfed",
    ),
    "rows": Entry(
        "the same where only the rows of the embedding travel that a round reads",
        (
            f"{_COMPARE} --rounds=20 --workdir=FOLDER/decided {_CUT} {_TOUCHED}",
            f"{_COMPARE} --rounds=20 --workdir=FOLDER/one_block {_ONE_BLOCK} {_TOUCHED}",
        ),
        10,
        of_comparisons("decided", "one_block"),
        tiny=f"{_FEW} --policies=static_pipeline,splitfed",
    ),
    "modes": Entry(
        "first rounds that choose between pipelines, split learning and federated averaging",
        (
            f"{_MODES} --rounds=100 --workdir=FOLDER/tables --config.model.min_cluster_blocks=0",
            f"{_MODES} --rounds=20 --workdir=FOLDER/rows --config.model.min_cluster_blocks=0 "
            f"{_TOUCHED}",
            f"{_MODES} --rounds=100 --workdir=FOLDER/tables_one {_KEEPS_ONE}",
            f"{_MODES} --rounds=20 --workdir=FOLDER/rows_one {_KEEPS_ONE} {_TOUCHED}",
        ),
        40,
        of_comparisons("tables", "rows", "tables_one", "rows_one"),
        tiny=f"{_FEW} --config.policy.modes=static_pipeline,splitfed",
    ),
    "mode_map": Entry(
        "which mode is the fastest by band and by speed of the edge server",
        (
            ".venv/bin/collapipe map --config=paper --config.model.min_cluster_blocks=0 "
            f"--policies={','.join(MODES)} --networks=32 --rounds=10 --workdir=FOLDER "
            "--x=radio.d2e_bandwidth_hz=5e6,2e7,8e7 "
            "--y=devices.es_flops_per_s=2e11,6e11,2e12,6e12",
        ),
        20,
        of_map,
        tiny="--networks=2 --rounds=2 --policies=static_pipeline,splitfed",
    ),
    "depth": Entry(
        "pipelines whose last blocks the edge server holds",
        (
            f"{_SWEEP} --policies=dssra,dssra_wide,best_mode,static_pipeline,splitfed --rounds=40 "
            "--realisations=64 --workdir=FOLDER --config.policy.routes=gateways "
            '--sweep "model.server_blocks=0,3,6,9,11 policy.cut=12,9,6,3,1"',
        ),
        10,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,splitfed",
    ),
    "bits": Entry(
        "latency with updates in few bits, without residuals",
        (f"{_BITS} --workdir=FOLDER --config.payload.error_feedback=False",),
        8,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,selected_fl",
    ),
    "bits_residuals": Entry(
        "the same with residuals, which take memory",
        (f"{_BITS} --workdir=FOLDER",),
        8,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,selected_fl",
    ),
    "bits_scores": Entry(
        "test BLEU with updates in few bits, with residuals",
        tuple(
            ".venv/bin/collapipe train --config=quickstart --config.policy.name=static_pipeline "
            f"--seeds=3 --workdir=FOLDER/{bits} --config.payload.update_number_bits={bits}"
            for bits in (0, 8, 4)
        ),
        4,
        of_seeds,
        (*_EDGE, *_LEARNING),
        tiny=_SHORT_RUN,
    ),
    "choices": Entry(
        "the same policies under other choices of the radio, the payload and the work",
        (
            ".venv/bin/collapipe sweep --config=configs/sweeps.py:sensitivity --rounds=20 "
            "--realisations=32 --workdir=FOLDER --policies=dssra,dssra_wide,static_pipeline,"
            "titanic_pipelined,vanilla_fl,selected_fl,splitfed,hierarchical_fl",
        ),
        12,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,vanilla_fl",
    ),
    "conditions": Entry(
        "the same policies in other surroundings",
        (
            ".venv/bin/collapipe sweep --config=configs/sweeps.py:conditions --rounds=20 "
            "--realisations=32 --workdir=FOLDER --policies=dssra,dssra_wide,static_pipeline,"
            "titanic_pipelined,selected_fl,splitfed",
        ),
        15,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,vanilla_fl",
    ),
    "memory": Entry(
        "the claims of the paper against the memory that training has",
        (
            ".venv/bin/collapipe sweep --config=configs/sweeps.py:memory --rounds=40 "
            "--realisations=64 --workdir=FOLDER --policies=dssra,dssra_wide,titanic_pipelined,"
            "vanilla_fl,selected_fl,splitfed",
        ),
        10,
        of_sweep,
        tiny=f"{_FEW} --policies=static_pipeline,vanilla_fl",
    ),
    "left_out": Entry(
        "what rounds would take if costs counted what they leave out",
        (
            ".venv/bin/collapipe sweep --config=configs/sweeps.py:left_out --rounds=20 "
            "--realisations=32 --workdir=FOLDER --policies=dssra,dssra_wide",
        ),
        15,
        of_growth,
        tiny=f"{_FEW} --policies=static_pipeline",
    ),
    "gap": Entry(
        "dssra against the best of all partitions, on small networks",
        (
            ".venv/bin/python -m experiments.benchmarks.solver.gap --networks=150 --seed=9840 "
            "--workdir=FOLDER",
        ),
        8,
        lambda folder: of_object(folder / "summary.json")["usable"],
        ("collapipe_jax/edge",),
        tiny="--networks=2",
    ),
    "gateways": Entry(
        "dssra_wide against all choices of gateways, on small networks",
        (
            ".venv/bin/python -m experiments.benchmarks.solver.gateways --networks=200 --seed=9350 "
            "--out=FOLDER/summary.json",
        ),
        5,
        lambda folder: of_object(folder / "summary.json"),
        ("collapipe_jax/edge",),
        tiny="--networks=2",
    ),
    "collaboration": Entry(
        "collaborative training against the same model in one place",
        (_gap("tatoeba", "0.5,1,2,4"), _gap("clinc150", "0.5,1,2,4"), _gap("bc5cdr", "1,2")),
        150,
        of_folders("tatoeba", "clinc150", "bc5cdr"),
        _LEARNING,
        needs="corpora",
    ),
    "linear": Entry(
        "linear models on the corpora, and recall of entities that training has, and has not",
        (".venv/bin/python -m experiments.benchmarks.linear_baselines --out=FOLDER/summary.json",),
        10,
        lambda folder: of_object(folder / "summary.json"),
        ("collapipe_jax/learning/tasks",),
        needs="corpora",
    ),
    "plain_models": Entry(
        "the same without n-grams and a chain of tags",
        tuple(_gap(name, "1") for name in ("tatoeba", "clinc150:plain", "bc5cdr:plain")),
        200,
        of_folders("tatoeba", "clinc150:plain", "bc5cdr:plain"),
        _LEARNING,
        needs="corpora",
    ),
    "convergence": Entry(
        "how losses slow the learning of a real task, one cause at a time",
        (
            ".venv/bin/python -m experiments.studies.convergence "
            "--config=configs/convergence_clinc150.py --workdir=FOLDER --seeds=12",
        ),
        180,
        lambda folder: of_object(folder / "summary.json"),
        _LEARNING,
        needs="corpora",
    ),
    "race_clinc150": _race(
        "clinc150", "accuracy", 70, 200, "1,2", "--config.evaluation.every_rounds=20"
    ),
    "race_tatoeba": _race(
        "tatoeba",
        "BLEU",
        120,
        200,
        "1,2,4",
        "--config.evaluation.every_rounds=25 --config.evaluation.beams=1",
    ),
    "race_bc5cdr": _race(
        "bc5cdr", "span F1", 180, 100, "1,2", "--config.evaluation.every_rounds=10"
    ),
    "dynamic": Entry(
        "training in equal simulated time while devices walk, and one in five is absent",
        (
            _dynamic("quickstart", f"--policies={_WALKERS}", "--seeds=3"),
            _dynamic(
                "clinc150",
                f"--policies={_WALKERS}",
                "--config.training.rounds=100 --config.training.warmup_steps=50",
                "--config.evaluation.every_rounds=10",
            ),
        ),
        90,
        of_races("quickstart", "clinc150"),
        (*_EDGE, *_LEARNING),
        needs="corpora",
    ),
    "drift": Entry(
        "methods against drift, where every cluster has whole domains",
        tuple(
            ".venv/bin/collapipe train --config=clinc150:plain --config.task.split=natural "
            "--config.policy.name=static_pipeline --config.model.width=64 "
            "--config.model.feed_forward_width=256 --config.model.encoder_blocks=2 "
            "--config.training.rounds=60 --config.training.local_steps=8 "
            "--config.training.warmup_steps=60 --config.training.client_learning_rate=0.002 "
            "--config.training.decoder_learning_rate=0.002 --config.evaluation.every_rounds=20 "
            f"--config.evaluation.by_cluster=True --workdir=FOLDER/{name} {method}"
            for name, method in _AGAINST_DRIFT.items()
        ),
        10,
        of_folders(*_AGAINST_DRIFT),
        _LEARNING,
        needs="corpora",
    ),
    "language_model": Entry(
        "perplexity of a small language model and of n-grams",
        (
            "TEXTS=$COLLAPIPE_DATA/mt_tatoeba_deu_eng/deu.txt; "
            "cut -f1 $TEXTS | sort -u | shuf --random-source=$TEXTS > FOLDER/all.txt",
            "head -n 2000 FOLDER/all.txt > FOLDER/test.txt; "
            "sed -n 2001,3000p FOLDER/all.txt > FOLDER/validation.txt; "
            "tail -n +3001 FOLDER/all.txt > FOLDER/train.txt",
            ".venv/bin/python -m experiments.studies.central_gap --config=causal_lm "
            "--config.task.train=FOLDER/train.txt --config.task.validation=FOLDER/validation.txt "
            "--config.task.test=FOLDER/test.txt --config.task.source_length=24 "
            "--config.training.length_buckets=4 --config.model.dropout_rate=0.0 "
            "--config.training.rounds=600 --config.evaluation.every_rounds=150 --seeds=2 "
            "--workdir=FOLDER/english",
            ".venv/bin/python -m experiments.benchmarks.ngrams --run=FOLDER/english/seed0 "
            "--out=FOLDER/ngrams/summary.json",
        ),
        25,
        of_folders("english", "ngrams"),
        _LEARNING,
        needs="corpora",
    ),
    "leakage": Entry(
        "tokens that activations give away, and what noise costs",
        (
            f".venv/bin/collapipe train {_PROBED} --workdir=FOLDER/trained --seeds=2 "
            "--sweep training.activation_noise=0,0.3,1,3 --config.training.rounds=100 "
            "--config.training.warmup_steps=100 --config.training.client_learning_rate=4e-3 "
            "--config.training.decoder_learning_rate=4e-3 --config.evaluation.every_rounds=25",
            f".venv/bin/python -m experiments.studies.leakage {_PROBED} --texts=3000 "
            "--noise=0,0.3,1,3 --config.model.pretrained=FOLDER/trained/runs/0000/model "
            "--out=FOLDER/probe/summary.json",
        ),
        30,
        of_folders("trained", "probe"),
        _LEARNING,
        needs="corpora",
    ),
    "privacy": Entry(
        "test score against epsilon",
        (
            ".venv/bin/python -m experiments.studies.privacy --config=configs/privacy_clinc150.py "
            "--workdir=FOLDER --seeds=3",
        ),
        10,
        lambda folder: {"scores": of_object(folder / "summary.json")["scores"]},
        _LEARNING,
        needs="corpora",
    ),
    "gpu": Entry(
        "speed and memory on one H100",
        (".venv/bin/python -m experiments.benchmarks.gpu --out=FOLDER/gpu.json --limit-s=1200",),
        20,
        lambda folder: {"runs": [of_object(folder / "gpu.json")]},
        (*_EDGE, *_LEARNING),
        tiny="--toy",
        needs="a GPU",
    ),
}
"""Measurements by name, in the order of the pages."""
