import io
import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console
from support import tiny_run

from collapipe_jax.core.errors import InputError, TrainingError
from collapipe_jax.core.files import lock_folder
from collapipe_jax.learning.tasks.translation import Translation
from collapipe_jax.runs.config.experiment import build_experiment, build_optimizers
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.figures import draw
from collapipe_jax.runs.results.checkpoints import Run, RunRecord, load_race, save_race
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.store import Shard
from collapipe_jax.runs.studies import race as module
from collapipe_jax.runs.studies.race import race
from collapipe_jax.runs.training.network_ahead import round_latencies_s
from experiments.studies import race as study


@pytest.mark.slow
def test_policies_of_both_kinds_race_in_equal_time_on_two_seeds(tmp_path, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(draw, "draw_runs", lambda *given: drawn.append(given) or [])
    overrides = ["--config.dynamics.availability=1.0", "--config.training.rounds=3"]
    names = ("static_pipeline", "vanilla_fl")
    arguments = [f"--workdir={tmp_path}", f"--policies={','.join(names)}", "--seeds=2"]
    arguments += [f"--config={tiny_run.__file__}", "--equal=time", *overrides]
    study.main([*arguments, "--shard=1/3"])
    assert {path.parent.name for path in tmp_path.glob("*/summary.json")} == {"vanilla_fl"}
    assert "others lack 3" in capsys.readouterr().out
    study.main(arguments)

    runs = load_race(tmp_path)
    assert [(run.policy, run.seed) for run in runs] == [(name, s) for s in (0, 1) for name in names]
    assert {run.folder for run in runs} >= {"vanilla_fl", "vanilla_fl_seed1"}
    for first, other in (runs[:2], runs[2:]):
        assert len(first.record.history["round"]) == 3
        _assert_rounds_that_fit(other, first.summary["simulated_time_s"])
        # The same parameters on the same mini-batches, up to what a first local step changes.
        losses = [run.record.history["train_loss"][0] for run in (first, other)]
        assert losses[0] == pytest.approx(losses[1], rel=0.05)
        assert np.isfinite(other.validation_score)

    table = capsys.readouterr().out
    for words in ("evaluated at", "under static_pipeline", "of 2 seeds"):
        assert words in table
    assert "learning rates" not in table
    assert draw.kind_of(tmp_path) == "race"
    ((records, folder),) = drawn  # figures of runs have tests of their own
    assert [record.policy for record in records] == list(names)
    assert folder == tmp_path / "figures"
    assert (folder / "race.png").is_file()
    with pytest.raises(InputError, match="clock"):  # of the same policies, but another race
        race(
            read_config(tiny_run.__file__, parse_overrides(overrides)),
            names,
            tmp_path,
            Console(quiet=True),
        )


def _assert_rounds_that_fit(run, time_s):
    """One round more would not; what was foreseen is what happened."""
    config = ConfigDict(run.record.config)
    latency_s = run.record.history["latency_s"]
    ahead = round_latencies_s(build_experiment(config))
    ahead_s = list(itertools.islice(ahead, len(latency_s) + 1))
    np.testing.assert_array_equal(ahead_s[:-1], latency_s)
    assert sum(ahead_s[:-1]) <= time_s * (1 + 1e-6) < sum(ahead_s)
    assert config.training.rounds == config.evaluation.every_rounds == len(latency_s)


@pytest.mark.parametrize(
    ("policies", "told"),
    [(("static_pipeline", "none"), r"policy\.name"), (("dssra", "dssra"), "--policies")],
)
def test_wrong_policies_are_reported_before_any_work(policies, told, tmp_path):
    with pytest.raises(InputError, match=told):
        race(tiny_run.get_config(), policies, tmp_path, Console())
    assert not list(tmp_path.iterdir())


def test_a_second_process_is_kept_from_a_race(tmp_path):
    with lock_folder(tmp_path), pytest.raises(InputError, match="writes to it"):
        race(tiny_run.get_config(), ("static_pipeline",), tmp_path, Console())
    assert not list(tmp_path.glob("*/metrics.jsonl"))


def test_every_policy_races_with_the_best_of_its_rates(tmp_path, monkeypatch):
    scores = {("dssra", 0.5): 10.0, ("dssra", 1.0): 40.0, ("dssra", 2.0): 30.0}
    scores |= {("titanic", 0.5): 1.0, ("titanic", 1.0): np.nan, ("titanic", 2.0): 1.0}
    asked = []

    def train(course, pairs, seeds, may_break=False):
        asked.append((list(seeds), pairs))
        assert may_break is (len(asked) == 1)
        return [
            made_up_run(name, seed, 1.0, [scores[name, rate]], [1.0])._replace(rate=rate)
            for seed in seeds
            for name, rate in pairs
        ]

    monkeypatch.setattr(module._SharedSettings, "train", train)
    saved = []
    monkeypatch.setattr(module, "save_race", lambda runs, results: saved.extend(runs))
    config, out = tiny_run.get_config(), io.StringIO()
    rates = (0.5, 1.0, 2.0)
    console = Console(file=out, width=120)
    race(config, ("dssra", "titanic"), tmp_path, console, rates=rates, seeds=2)
    assert sorted(asked[0][1]) == sorted(scores)
    assert asked[1] == ([1], [("dssra", 1.0), ("titanic", 0.5)])  # of equals the first
    assert [(run.policy, run.rate, run.seed) for run in saved] == [
        ("dssra", 1.0, 0),
        ("titanic", 0.5, 0),
        ("dssra", 1.0, 1),
        ("titanic", 0.5, 1),
    ]
    told = next(line for line in out.getvalue().splitlines() if "learning rates" in line)
    assert {"1", "0.5"} <= set(told.split())


def test_a_policy_that_breaks_down_at_all_rates_is_named(tmp_path, monkeypatch):
    def train(course, pairs, seeds, may_break):
        return [made_up_run("dssra", seeds[0], 1.0, [1.0], [1.0])]

    monkeypatch.setattr(module._SharedSettings, "train", train)
    with pytest.raises(TrainingError, match="titanic at all rates"):
        race(tiny_run.get_config(), ("dssra", "titanic"), tmp_path, Console(), rates=(1.0, 2.0))


def test_rates_are_chosen_when_all_shards_are_done(tmp_path, monkeypatch):
    asked = []
    settings = module._SharedSettings
    monkeypatch.setattr(settings, "_entrants", lambda *given: asked.append(given) or [])
    monkeypatch.setattr(module, "train_shard", lambda *given: 5)
    config, out = tiny_run.get_config(), io.StringIO()
    options = {"rates": (1.0, 2.0), "seeds": 2, "shard": Shard(0, 2)}
    is_over = race(config, ("dssra", "titanic"), tmp_path, Console(file=out), **options)
    assert not is_over
    assert len(asked) == 1  # of the first seed
    assert "shard 0/2 has trained its runs; others lack 5" in " ".join(out.getvalue().split())


def test_a_corpus_is_read_once_for_all_rates(tmp_path, monkeypatch):
    built, load = [], Translation.load_data.__func__
    counted = classmethod(lambda cls, *given: built.append(1) or load(cls, *given))
    monkeypatch.setattr(Translation, "load_data", counted)
    config = tiny_run.get_config()
    course = module._SharedSettings(config, tmp_path, Console(quiet=True), None)
    pairs = [("static_pipeline", 0.0625), ("titanic", 1.0), ("static_pipeline", 1.0)]
    entrants = list(course._entrants(pairs, 3))
    assert len(built) == 1
    assert [(name, rate) for name, rate, _ in entrants] == pairs
    for name, rate, experiment in entrants:
        assert experiment.config["seed"] == 3
        assert experiment.config["policy"]["name"] == name
        for key in ("client_learning_rate", "decoder_learning_rate"):
            assert experiment.config["training"][key] == config.training[key] * rate
    structures = {jax.tree.structure(experiment.learner) for *_, experiment in entrants}
    assert len(structures) == 1  # one program


def test_a_round_longer_than_the_time_is_one_round(monkeypatch):
    monkeypatch.setattr(module, "round_latencies_s", lambda experiment: iter([2.0, 2.0, np.inf]))
    assert [module.rounds_within(None, time_s) for time_s in (1.0, 2.0, 4.5)] == [1, 1, 2]


@pytest.mark.parametrize("latency_s", [np.inf, 0.0])
def test_a_policy_without_a_clock_does_not_set_it(latency_s, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "round_latencies_s", lambda experiment: itertools.repeat(latency_s))
    config, names = tiny_run.get_config(), ("static_pipeline", "titanic")
    with pytest.raises(InputError, match="sets the time"):
        race(config, names, tmp_path, Console(quiet=True), equal_time=True)


def test_few_rounds_keep_a_valid_schedule():
    config = tiny_run.get_config()
    config.training.warmup_steps = 11  # of 12
    module._spread_over(config, 1)
    assert (config.training.rounds, config.training.warmup_steps) == (1, 1)
    assert config.evaluation.every_rounds == config.checkpoint_every_rounds == 1
    build_optimizers(config)


@pytest.mark.parametrize("left", ["nothing", "settings", "damaged", "lost_run"])
def test_a_folder_without_a_whole_race_is_reported(left, tmp_path):
    problem = "no results of race"
    if left != "nothing":
        results, problem = Results.create(tmp_path, "race", {"clock": None}, {}), "is missing"
        if left == "damaged":
            save_race([made_up_run("dssra", 0, 1.0, [1.0], [1.0])], results)
            results.path("runs").write_text("half")
            problem = "is damaged"
        elif left == "lost_run":
            save_race([made_up_run("dssra", 0, 1.0, [1.0], [1.0])], results)
            problem = r"dssra_seed0.*summary\.json is missing"
    with pytest.raises(InputError, match=problem):
        load_race(tmp_path)


def made_up_run(policy, seed, test, scores, times, kind="translation"):
    history = {"score": np.array(scores), "simulated_time_s": np.array(times), "round": times}
    record = RunRecord({"policy": {"name": policy}, "task": {"kind": kind}}, {}, history)
    rows = dict.fromkeys([key for key, _ in module.ROWS.values()], 2.0 * 2**20)
    summary = {"policy": policy, "test_bleu": test, "test_loss": 1.0, "note": True, **rows}
    summary["test_signatures"] = ["BLEU|tok:13a"]
    return Run(policy, 2.0, seed, f"{policy}_seed{seed}", "test_bleu", summary, record)


def printed_rows(runs, **options):
    out = io.StringIO()
    Console(file=out, width=160).print(module.race_table(runs, **options))
    lines = [line.strip("│ \n").split("│") for line in out.getvalue().splitlines() if "│" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_table_tells_means_leads_and_times():
    none = np.nan
    runs = [
        made_up_run("dssra", 0, 50.0, [none, 40.0, 50.0], [1.0, 2.0, 3.0]),
        made_up_run("other", 0, 20.0, [none, 30.0, 46.0], [2.0, 4.0, 6.0]),
        made_up_run("dssra", 1, 54.0, [none, 54.0, 60.0], [10.0, 20.0, 30.0]),
        made_up_run("other", 1, 30.0, [none, none, none], [5.0, 6.0, 7.0]),
    ]
    rows = printed_rows(runs, with_rates=True)
    # Of two values the 95 % interval is 12.706 half distances.
    assert rows["test bleu"] == ["52.0 ± 25.4", "25.0 ± 63.5"]
    assert rows["under dssra"] == ["0.0 ± 0.0", "27.0 ± 38.1"]
    assert rows["evaluated at 45.0, 54.0 or above first after, s"] == ["3, 20", "6, never"]
    assert rows["learning rates, of those configured"] == ["2", "2"]
    assert rows["rounds"] == ["3 ± 0", "3 ± 0"]
    assert rows["peak memory of a device, MiB"] == ["2.0 ± 0.0", "2.0 ± 0.0"]
    one = printed_rows(runs[:2])
    assert one["test bleu"] == ["50.0", "20.0"]
    assert "under dssra" not in one
    broken = printed_rows([made_up_run("dssra", 0, none, [9.0, none], [1.0, 2.0])])
    assert broken["test bleu"] == ["not finite"]
    assert broken["evaluated at not finite or above first after, s"] == ["never"]


def test_a_score_that_falls_is_reached_from_above():
    scores = {"dssra": [90.0, 54.0, 45.0], "other": [70.0, 50.0, 49.0]}
    runs = [
        made_up_run(policy, 0, 1.0, found, [1.0, 2.0, 3.0], "causal_lm")
        for policy, found in scores.items()
    ]
    runs.append(made_up_run("broken", 0, 1.0, [80.0, np.nan, np.nan], [1.0, 2.0, 3.0], "causal_lm"))
    assert [run.merit for run in runs] == [-45.0, -49.0, -np.inf]
    # The best, 45, is 0.9 of 50.
    assert printed_rows(runs)["evaluated at 50.0 or below first after, s"] == ["3", "2", "never"]


@pytest.mark.parametrize("rates", ["1,x", "", "0,1", "nan"])
def test_wrong_rates_are_reported(rates, tmp_path):
    path = Path(tiny_run.__file__)
    arguments = [f"--config={path}", f"--workdir={tmp_path}", f"--rates={rates}"]
    with pytest.raises(InputError, match="--rates"):
        study.main(arguments)


def test_scores_of_validation_are_in_the_table_where_there_is_no_test():
    run = made_up_run("dssra", 0, 50.0, [50.0], [1.0])
    summary = {name.replace("test_", "validation_"): run.summary[name] for name in run.summary}
    rows = printed_rows([run._replace(headline="validation_bleu", summary=summary)])
    assert rows["validation bleu"] == ["50.0"]
