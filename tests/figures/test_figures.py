import re
from itertools import pairwise

import numpy as np
import pytest
from support.drawing import (
    CLUSTERS,
    DEVICES,
    assert_units,
    flow_s,
    line_values,
    make_record,
    panels_of,
    rendered,
)

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import Checkpoints, open_workdir
from figures import all as all_figures
from figures import command_line, gantt, latency, progress, queues, style
from figures.schedule import BACKWARD, TURN, first_step, pick, runs_pipeline

DRAWS = {"progress": progress, "latency": latency, "queues": queues, "gantt": gantt}
CASES = {
    "one": lambda: [make_record()],
    "two": lambda: [make_record(), make_record("static_pipeline", load=3.0, seed=1)],
    "one_round": lambda: [make_record(rounds=1, evaluated=1, absent=False)],
    "no_evaluation": lambda: [make_record(evaluated=0)],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_with_units(name, case):
    figure = rendered(DRAWS[name].draw(CASES[case]()))
    assert_units(figure)
    assert figure.get_figwidth() in (style.COLUMN_WIDTH_IN, style.DOUBLE_WIDTH_IN)


@pytest.mark.parametrize("name", DRAWS)
def test_no_text_is_smaller_than_7_points(name):
    from matplotlib.text import Text

    figure = rendered(DRAWS[name].draw(CASES["two"]()))
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 7


def test_progress_joins_evaluated_rounds_only():
    record = make_record(rounds=12, evaluated=4)
    figure = progress.draw([record])
    score = figure.axes[0].lines[0]
    np.testing.assert_array_equal(score.get_xdata(), [4, 8, 12])
    np.testing.assert_array_equal(score.get_ydata(), record.history["score"][3::4])
    assert any(np.all(values == 3.2) for values in line_values(figure.axes[0]))


def test_progress_time_axis_is_the_simulated_clock():
    record = make_record(rounds=12)
    figure = progress.draw([record])
    unit = re.search(r"\[(.*)\]", figure.axes[3].get_xlabel())[1]
    seconds = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    training = figure.axes[3].lines[0]
    np.testing.assert_allclose(training.get_xdata() * seconds, record.history["simulated_time_s"])


def test_progress_says_when_nothing_was_evaluated():
    figure = progress.draw([make_record(evaluated=0)])
    assert [text.get_text() for text in figure.axes[0].texts] == ["no evaluation yet"]
    assert not progress.draw([make_record()]).axes[0].texts


def test_slowest_parts_sum_to_the_latency():
    record = make_record(rounds=30)
    np.testing.assert_allclose(
        latency.slowest_parts_s(record).sum(1), record.history["latency_s"], rtol=1e-12
    )


def test_infinite_latency_is_crossed_not_stacked():
    record = make_record(rounds=4)
    record.history["latency_s"][2] = np.inf
    record.history["cluster_latency_s"][2, 0] = np.inf
    record.history["parts_s"][2, 0, 4] = np.inf
    parts = latency.slowest_parts_s(record)
    assert np.isnan(parts[2]).all()
    assert np.isfinite(parts[[0, 1, 3]]).all()
    figure = rendered(latency.draw([record]))
    crosses = figure.axes[0].lines[0]
    np.testing.assert_array_equal(crosses.get_xdata(), [3])


def test_latency_panels_share_axes():
    figure = latency.draw(CASES["two"]())
    first, second = figure.axes[:2]
    assert first.get_ylim() == second.get_ylim()
    tallest_s = max(record.history["latency_s"].max() for record in CASES["two"]())
    assert first.get_ylim()[1] >= tallest_s


def test_all_sit_out_in_one_round():
    record = make_record(rounds=3)
    for name in ("parts_s", "cluster_latency_s", "latency_s", "forward_flow_s", "backward_flow_s"):
        record.history[name][2] = 0
    for module in DRAWS.values():
        rendered(module.draw([record]))
    assert pick(record, None, None)[0] == 1


def test_ratios_at_the_last_round_are_time_averages_over_budget():
    record = make_record(rounds=9)
    expected = record.history["energy_j"].mean(0) / record.constants["energy_budget_j"]
    np.testing.assert_allclose(queues.energy_over_budget(record)[-1], expected)
    np.testing.assert_allclose(
        queues.divergence_over_target(record)[-1], record.history["divergence"].mean() / 1.1
    )


def test_worst_node_of_each_class_is_bold():
    record = make_record()
    energy, queue = queues.draw([record]).axes[:2]
    ratio = queues.energy_over_budget(record)[-1]
    mean_queue = record.history["energy_queue"].mean(0)
    for axes, worth, told in (
        (energy, ratio, lambda line: line.get_ydata()[-1]),
        (queue, mean_queue, lambda line: np.mean(line.get_ydata())),
    ):
        bold = [line for line in axes.lines if line.get_linewidth() > 1]
        worst = sorted([worth[:, 0].max(), worth[:, 1:].max()])
        np.testing.assert_allclose(sorted(told(line) for line in bold), worst)
        thin = [line for line in axes.lines if line.get_linewidth() < 0.5]
        assert len(thin) == CLUSTERS * (DEVICES + 1)


@pytest.mark.parametrize("load", [1.0, 200.0])
def test_queue_axes_hold_everything(load):
    figure = rendered(queues.draw([make_record(), make_record("random", load=load)]))
    for axes in panels_of(figure):
        highest = max(values.max() for values in line_values(axes))
        assert axes.get_ylim()[1] >= highest
        assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("micro_batches", [1, 2, 7, 32])
@pytest.mark.parametrize("cluster", [0, 2])
def test_bars_fill_resources_without_overlap(micro_batches, cluster):
    record = make_record(rounds=2, micro_batches=micro_batches, absent=False)
    step = first_step(record, 1, cluster)
    stages = [record.history[f"{way}_flow_s"][1, cluster] for way in ("forward", "backward")]
    makespan_s = sum(flow_s(stage_s, micro_batches) for stage_s in stages)
    assert step.finish_s == pytest.approx(makespan_s, rel=1e-5)
    assert max(bar.finish_s for bar in step.bars) == pytest.approx(makespan_s, rel=1e-5)
    assert len(step.bars) == micro_batches * sum((stage_s > 0).sum() for stage_s in stages)
    busy_s = sum(bar.finish_s - bar.start_s for bar in step.bars)
    assert busy_s == pytest.approx(micro_batches * sum(s.sum() for s in stages), rel=1e-4)
    for resource in step.resources:
        bars = sorted(
            (bar for bar in step.bars if bar.resource == resource), key=lambda bar: bar.start_s
        )
        gaps = [after.start_s - before.finish_s for before, after in pairwise(bars)]
        assert min(gaps, default=0.0) >= -1e-5 * makespan_s


def test_backward_flow_waits_for_the_last_decoder_pass():
    step = first_step(make_record(rounds=1, absent=False), 0, 0)
    last_turn = max(bar.finish_s for bar in step.bars if bar.direction == TURN)
    assert last_turn == pytest.approx(step.turned_s)
    first_back = min(bar.start_s for bar in step.bars if bar.direction == BACKWARD)
    assert first_back >= step.turned_s


def test_micro_batches_pass_resources_in_order():
    step = first_step(make_record(rounds=1, absent=False), 0, 0)
    forward = [name for name in step.resources if name != "downlink"]
    for direction, order in (("forward", forward[:-1]), (BACKWARD, ["downlink", *forward[-3::-1]])):
        for micro in range(step.micro_batches):
            bars = {
                bar.resource: bar
                for bar in step.bars
                if bar.micro_batch == micro and bar.direction == direction
            }
            assert list(bars) == order
            for before, after in pairwise(order):
                assert bars[after].start_s >= bars[before].finish_s - 1e-6


def test_rows_name_the_active_devices_and_their_hops():
    record = make_record(rounds=1, absent=False)
    record.history["forward_flow_s"][0, 0] = [1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]
    record.history["backward_flow_s"][0, 0] = [1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    assert first_step(record, 0, 0).resources == [
        "control unit",
        "CU ↔ device 2",
        "device 2",
        "device 2 ↔ device 4",
        "device 4",
        "device 4 ↔ CU",
        "uplink",
        "decoder",
        "downlink",
    ]


def test_pick_takes_the_slowest_cluster_of_the_last_round():
    record = make_record(rounds=5, absent=False)
    assert pick(record, None, None) == (4, record.history["cluster_latency_s"][4].argmax())
    assert pick(record, 2, 1) == (1, 1)


@pytest.mark.parametrize(
    ("chosen", "key"), [((99, None), "--round"), ((None, 7), "--cluster"), ((1, 1), "--cluster")]
)
def test_pick_refuses_what_did_not_run(chosen, key):
    with pytest.raises(InputError) as caught:
        gantt.draw([make_record()], *chosen)
    assert caught.value.key == key


def test_data_parallel_run_has_no_gantt():
    record = make_record("vanilla_fl", pipeline=False)
    assert not runs_pipeline(record).any()
    with pytest.raises(InputError, match="vanilla_fl"):
        gantt.draw([record])


def test_all_figures_in_both_formats(tmp_path, monkeypatch, capsys):
    runs = {
        str(tmp_path / "a"): make_record(rounds=3),
        str(tmp_path / "b"): make_record("vanilla_fl", rounds=3, pipeline=False),
    }
    for workdir, record in runs.items():
        open_workdir(workdir, {"policy": {"name": record.policy}}, resume=False)
    monkeypatch.setattr(command_line, "load_run", runs.get)
    out = tmp_path / "out"
    arguments = [*(f"--workdir={workdir}" for workdir in runs), f"--out={out}"]
    assert run_reporting_errors(all_figures.main, arguments) == 0
    written = sorted(path.name for path in out.iterdir())
    stems = ["gantt_dssra", "latency", "progress", "queues"]
    assert written == [f"{stem}{suffix}" for stem in stems for suffix in (".pdf", ".png")]
    printed = re.findall(r"written: (.*)", capsys.readouterr().out)
    assert sorted(printed) == sorted(str(out / name) for name in written)


def test_files_are_reproducible_and_embed_truetype(tmp_path):
    paths = [style.save(progress.draw([make_record()]), tmp_path / at, "p") for at in ("a", "b")]
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    pdf = paths[0][0].read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_default_folder_is_in_the_first_run():
    options = command_line.figure_parser(None).parse_args(["--workdir=x", "--workdir=y"])
    assert str(command_line.out_dir(options)) == "x/figures"


def test_figure_from_a_checkpoint(tmp_path):
    record = make_record("titanic", rounds=3)
    config = {"policy": {"name": "titanic"}, "task": {"kind": "translation"}}
    workdir = open_workdir(tmp_path / "run", config, resume=False)
    with Checkpoints(workdir) as checkpoints:
        saved = {"constants": record.constants, "history": record.history}
        checkpoints.save(3, {"weights": np.zeros(2)}, saved)
    assert run_reporting_errors(gantt.main, [f"--workdir={workdir}"]) == 0
    names = {path.name for path in (workdir / "figures").iterdir()}
    assert names == {"gantt.pdf", "gantt.png"}
    loaded = command_line.load_run(workdir)
    np.testing.assert_array_equal(latency.slowest_parts_s(loaded), latency.slowest_parts_s(record))


def test_missing_run_is_reported(tmp_path, capsys):
    assert run_reporting_errors(gantt.main, [f"--workdir={tmp_path / 'nowhere'}"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_labels_number_shared_policies():
    records = [make_record("a_b"), make_record("c"), make_record("a_b")]
    assert style.run_labels(records) == ["a b (1)", "c", "a b (2)"]


def test_labels_tell_the_one_key_that_differs():
    def record(policy, **keys):
        return make_record(policy)._replace(config={"policy": keys, "seed": keys.get("s", 0)})

    records = [record("a_b", micro_batches=1), record("c"), record("a_b", micro_batches=8)]
    assert style.run_labels(records) == ["a b (micro batches 1)", "c", "a b (micro batches 8)"]
    two_keys = [record("a", micro_batches=1, s=1), record("a", micro_batches=8, s=2)]
    assert style.run_labels(two_keys) == ["a (1)", "a (2)"]
    same = [*records, record("a_b", micro_batches=8)]
    assert style.run_labels(same)[0] == "a b (1)"


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(0.3, "ms"), (3, "s"), (119, "s"), (600, "min"), (9000, "h")]
)
def test_time_unit(longest_s, unit):
    assert style.time_unit(longest_s)[1] == unit


def test_a_broken_cluster_breaks_no_figure():
    record = make_record(rounds=4)
    for name in ("parts_s", "cluster_latency_s", "energy_j", "energy_queue", "forward_flow_s"):
        record.history[name][3, 0] = np.inf
    for name in ("latency_s", "simulated_time_s", "divergence", "divergence_queue"):
        record.history[name][3] = np.inf
    for module in DRAWS.values():
        rendered(module.draw([record]))
    assert not runs_pipeline(record)[3, 0]
