"""Bars of a local step: in order, without overlap, and all of them."""

from itertools import pairwise

import pytest
from support.drawing import flow_s, make_record

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import round as gantt
from collapipe_jax.runs.results.record import (
    BACKWARD,
    TURN,
    choose_round,
    first_step,
    runs_pipeline,
)


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


def test_under_1f1b_passes_alternate_and_end_by_gpipes_time():
    record = make_record(rounds=1, micro_batches=16, absent=False)
    record.config["pipeline"] = {"schedule": "1f1b"}
    step = first_step(record, 0, 0)
    stages = [record.history[f"{way}_flow_s"][0, 0] for way in ("forward", "backward")]
    assert step.finish_s <= sum(flow_s(stage_s, 16) for stage_s in stages) * (1 + 1e-5)
    assert len(step.bars) == 16 * sum((stage_s > 0).sum() for stage_s in stages)
    device = [name for name in step.resources if name.startswith("device") and "↔" not in name][-1]
    own = sorted((bar for bar in step.bars if bar.resource == device), key=lambda bar: bar.start_s)
    assert [bar.direction for bar in own] == ["forward"] * 4 + [BACKWARD, "forward"] * 12 + [
        BACKWARD
    ] * 4
    assert all(after.start_s >= bar.finish_s - 1e-4 for bar, after in pairwise(own))


def test_radios_that_take_turns_are_refused():
    record = make_record(rounds=1, absent=False)
    record.config["radio"] = {"duplex": "half"}
    with pytest.raises(InputError, match=r"radio\.duplex"):
        first_step(record, 0, 0)


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
    assert choose_round(record, None, None) == (4, record.history["cluster_latency_s"][4].argmax())
    assert choose_round(record, 2, 1) == (1, 1)


@pytest.mark.parametrize(
    ("chosen", "key"), [((99, None), "--round"), ((None, 7), "--cluster"), ((1, 1), "--cluster")]
)
def test_pick_refuses_what_did_not_run(chosen, key):
    with pytest.raises(InputError) as caught:
        gantt.draw_gantt([make_record()], *chosen)
    assert caught.value.key == key


def test_data_parallel_run_has_no_gantt():
    record = make_record("vanilla_fl", pipeline=False)
    assert not runs_pipeline(record).any()
    with pytest.raises(InputError, match="vanilla_fl"):
        gantt.draw_gantt([record])
