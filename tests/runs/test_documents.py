"""Documents come back as they went out, and every wrong one names its key."""

import copy
import json

import jax
import numpy as np
import pytest
from support.random_networks import random_decision, random_network, rows_section, secure_section
from support.reference_cost import reference_cost
from support.structs import as_problem

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.runs.documents import (
    read_decision,
    read_network,
    write_cost,
    write_decision,
    write_network,
)


def plain(document):
    """The document as JSON knows it: arrays become lists."""
    return json.loads(json.dumps(document, default=lambda value: np.asarray(value).tolist()))


def make_documents():
    rng = np.random.default_rng(41)
    network = random_network(rng, 2, 3, 6)
    decision = random_decision(rng, network, sitting_out=(1,))
    return plain(network), plain(decision)


@pytest.fixture
def files(tmp_path):
    """Write a changed network and decision; return what reads them."""

    def read(change_network=lambda _: None, change_decision=lambda _: None):
        network, decision = make_documents()
        change_network(network)
        change_decision(decision)
        (tmp_path / "network.json").write_text(json.dumps(network))
        (tmp_path / "decision.json").write_text(json.dumps(decision))
        problem = read_network(tmp_path / "network.json")
        return problem, read_decision(tmp_path / "decision.json", problem)

    return read


# --- right documents --------------------------------------------------------------------------


def test_the_schedule_comes_back_and_older_documents_have_gpipe(files, tmp_path):
    assert files()[0].workload.schedule == "gpipe"
    problem, _ = files(put(["workload", "schedule"], "1f1b"))
    assert problem.workload.schedule == "1f1b"
    write_network(tmp_path / "again.json", problem)
    assert read_network(tmp_path / "again.json").workload.schedule == "1f1b"


def test_a_capacity_comes_back_and_documents_may_lack_it(files, tmp_path):
    assert files()[0].workload.capacity is None
    problem, _ = files(put(["workload", "capacity"], 4))
    write_network(tmp_path / "again.json", problem)
    assert read_network(tmp_path / "again.json").workload.capacity == 4
    with pytest.raises(InputError, match="capacity"):
        files(put(["workload", "capacity"], 0))


def test_blocks_at_the_server_come_back_and_older_documents_have_none(files, tmp_path):
    assert files()[0].workload.server_blocks == 0
    problem, _ = files(put(["workload", "server_blocks"], 5))
    write_network(tmp_path / "again.json", problem)
    assert read_network(tmp_path / "again.json").workload.cluster_blocks == 1
    with pytest.raises(InputError, match=r"server_blocks = 7: there are 6"):
        files(put(["workload", "server_blocks"], 7))


def test_older_documents_have_the_uplinks_interference_and_count_radiated_power(files):
    def age(network):
        del network["radio"]["downlink_interference_w"], network["radio"]["amplifier_efficiency"]

    radio = files(age)[0].radio
    assert radio.downlink_interference_w == radio.d2e_interference_w
    assert radio.amplifier_efficiency == 1.0


@pytest.mark.usefixtures("x64")
def test_reading_gives_every_number_its_place(files):
    problem, decision = files()
    network, decided = make_documents()
    jax.tree.map(np.testing.assert_array_equal, problem, as_problem(network))
    assert (problem.clusters, problem.devices, problem.workload.blocks) == (2, 3, 6)
    for key in ("segments", "micro_batches", "d2d_share", "d2d_power_w", "d2e_share"):
        np.testing.assert_array_equal(getattr(decision, key), decided[key])
    np.testing.assert_array_equal(decision.d2e_power_w, decided["d2e_power_w"])


@pytest.mark.usefixtures("x64")
def test_a_network_and_a_decision_come_back_as_they_went_out(files, tmp_path):
    problem, decision = files()
    write_network(tmp_path / "new" / "network.json", problem)
    write_decision(tmp_path / "new" / "decision.json", decision, "some_policy")
    again = read_network(tmp_path / "new" / "network.json")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-15), problem, again)
    decided = read_decision(tmp_path / "new" / "decision.json", again)
    jax.tree.map(np.testing.assert_array_equal, decision, decided)
    written = json.loads((tmp_path / "new" / "decision.json").read_text())
    assert written["policy"] == "some_policy"
    assert set(written) == set(make_documents()[1])
    assert not list((tmp_path / "new").glob("*.partial"))


@pytest.mark.usefixtures("x64")
def test_a_cost_is_written_key_by_key_with_nulls_where_a_message_breaks(files, tmp_path):
    def cut(network):
        network["radio"]["d2e_gain"][0][0] = 0

    problem, decision = files(cut)
    write_cost(tmp_path / "cost.json", jax.jit(evaluate)(problem, decision), ["memory"])
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert cost["format"] == "collapipe-cost/1"
    assert cost["latency_s"] is cost["divergence"] is cost["objective"] is None
    assert cost["cluster_latency_s"] == [None, 0]
    assert cost["energy_j"] == [[None] * 4, [0] * 4]
    assert cost["loss_probability"] == [1, 0]
    network, decided = make_documents()
    expected = reference_cost(network, decided)
    assert cost["compute_latency_s"] == pytest.approx(expected["compute_latency_s"])
    np.testing.assert_allclose(cost["memory_bytes"], expected["memory_bytes"])
    assert (cost["feasible"], cost["violations"], cost["absent"]) == (
        False,
        ["memory", "links"],
        [1],
    )
    assert len(cost) == 13


def test_an_energy_coefficient_below_single_precision_survives(files, tmp_path):
    def shrink(network):
        network["compute"]["energy_coefficient"][0][1] = 3e-41
        network["compute"]["flops_per_s"][0][1] = 2e13

    problem, _ = files(shrink)
    assert problem.compute.joules_per_flop[0, 1] == pytest.approx(3e-41 * 4e26, rel=1e-5)
    write_network(tmp_path / "again.json", problem)
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["compute"]["energy_coefficient"][0][1] == pytest.approx(3e-41, rel=1e-5)


def test_what_may_be_zero(files):
    def clear(network):
        for key in ("energy_queue", "divergence_queue", "v"):
            network["control"][key] = (np.array(network["control"][key]) * 0).tolist()
        for key in ("block_overhead_s", "link_overhead_s"):
            network["compute"][key] = 0
        network["compute"]["memory_bytes"][0][1] = 0  # a device that is away
        network["radio"]["d2d_gain"][0][1][2] = 0
        network["radio"]["d2d_power_max_w"][0][1] = 0

    problem, _ = files(clear)
    assert problem.compute.memory_bytes[0, 1] == 0


# --- wrong documents --------------------------------------------------------------------------


def put(path, value):
    """A change that sets a value at a path of keys and indices."""

    def change(document):
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def drop(*path):
    def change(document):
        place = document
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


WRONG_NETWORKS = [
    # (change, the key that is named, the problem)
    (put(["format"], "collapipe-network/2"), "format", "no such document"),
    (drop("format"), "format", "no such document"),
    (put(["colour"], 3), "colour", "unknown key"),
    (put(["radio", "colour"], 3), "radio.colour", "unknown key"),
    (drop("learning"), "learning", "missing"),
    (drop("clusters"), "clusters", "missing"),
    (drop("compute", "memory_bytes"), "compute.memory_bytes", "missing"),
    (put(["workload"], [1, 2]), "workload", "not an object"),
    (put(["clusters"], 3), "radio.d2e_power_max_w", "wrong shape"),
    (put(["clusters"], 0), "clusters", "zero"),
    (put(["devices"], 2.5), "devices", "not whole"),
    (put(["devices"], True), "devices", "not a number"),
    # shapes, at every depth
    (put(["radio", "snr_gap"], [2.0]), "radio.snr_gap", "not a number"),
    (put(["radio", "d2e_power_max_w"], 0.2), "radio.d2e_power_max_w", "wrong shape"),
    (put(["radio", "d2e_power_max_w"], [0.2]), "radio.d2e_power_max_w", "wrong shape"),
    (put(["compute", "memory_bytes", 1], [1e9] * 4), r"compute.memory_bytes\[1\]", "wrong shape"),
    (put(["radio", "d2d_gain", 1, 2], [1.0] * 3), r"radio.d2d_gain\[1\]\[2\]", "wrong shape"),
    (
        put(["radio", "cross_gain", 1, 2, 0], [1.0] * 5),
        r"radio.cross_gain\[1\]\[2\]\[0\]",
        "wrong shape",
    ),
    (
        put(["radio", "cross_gain", 1, 2, 0, 3], [1.0]),
        r"radio.cross_gain\[1\]\[2\]\[0\]\[3\]",
        "not a number",
    ),
    (put(["workload", "micro_batch_choices"], []), "workload.micro_batch_choices", "wrong shape"),
    (put(["workload", "micro_batch_choices"], 2), "workload.micro_batch_choices", "wrong shape"),
    # names
    (put(["workload", "schedule"], "1f2b"), "workload.schedule", "unknown"),
    (put(["workload", "schedule"], [1]), "workload.schedule", "unknown"),
    # numbers
    (put(["radio", "snr_gap"], "2"), "radio.snr_gap", "not a number"),
    (put(["radio", "snr_gap"], None), "radio.snr_gap", "not a number"),
    (put(["radio", "snr_gap"], True), "radio.snr_gap", "not a number"),
    (put(["radio", "snr_gap"], float("nan")), "radio.snr_gap", "not a finite number"),
    (put(["radio", "snr_gap"], float("inf")), "radio.snr_gap", "not a finite number"),
    (put(["workload", "block_flops"], 10**400), "workload.block_flops", "not a finite number"),
    (put(["workload", "batch"], 10**400), "workload.batch", "not a finite number"),
    (put(["radio", "bs_power_w"], -1.0), "radio.bs_power_w", "negative"),
    (
        put(["radio", "d2d_gain", 1, 2, 0], -1e-9),
        r"radio.d2d_gain\[1\]\[2\]\[0\]",
        "negative",
    ),
    (put(["control", "energy_queue", 1, 3], -0.1), r"control.energy_queue\[1\]\[3\]", "negative"),
    (put(["control", "energy_budget_j", 0, 2], 0), r"control.energy_budget_j\[0\]\[2\]", "zero"),
    (put(["compute", "flops_per_s", 0, 0], 0.0), r"compute.flops_per_s\[0\]\[0\]", "zero"),
    (put(["radio", "node_noise_w_per_hz"], 0), "radio.node_noise_w_per_hz", "zero"),
    (put(["workload", "batch"], 24.5), "workload.batch", "not whole"),
    (put(["radio", "harq_attempts"], 0), "radio.harq_attempts", "zero"),
    (put(["radio", "node_noise_w_per_hz"], 1e-60), "radio.node_noise_w_per_hz", "in single"),
    (put(["radio", "node_noise_w_per_hz"], 10**309), "radio.node_noise_w_per_hz", "not a finite"),
    (
        put(["compute", "energy_coefficient", 0, 0], 1e20),
        r"compute.energy_coefficient \* .*",
        "beyond",
    ),
    # what must fit together
    (put(["workload", "local_steps"], 2**30), "workload.local_steps", "times .* is 25769803776"),
    (
        put(["workload", "micro_batch_choices"], [2, 5]),
        "workload.micro_batch_choices",
        "no divisor of batch = 24",
    ),
    (put(["learning", "cluster_weight"], [0.5, 0.4]), "learning.cluster_weight", "the sum is 0.9"),
]


@pytest.mark.parametrize(("change", "key", "problem"), WRONG_NETWORKS)
def test_a_wrong_network_names_its_key(files, change, key, problem):
    with pytest.raises(InputError, match=rf"^{key} = .*{problem}") as error:
        files(change_network=change)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (r"radio.d2e_gain\[0\]\[1\]", ["d2e_gain", 0, 1]),
        (r"radio.d2d_gain\[1\]\[2\]\[0\]", ["d2d_gain", 1, 2, 0]),
        (r"radio.cross_gain\[1\]\[2\]\[0\]\[3\]", ["cross_gain", 1, 2, 0, 3]),
    ],
)
def test_a_gain_above_one_is_refused_with_the_likely_slip(files, key, path):
    with pytest.raises(InputError, match=rf"^{key} = 93.5: out of bounds .* path loss in dB\?"):
        files(change_network=put(["radio", *path], 93.5))


@pytest.mark.parametrize(
    ("key", "value", "slip"),
    [
        ("radio.d2e_bandwidth_hz", 20.0, "In MHz"),
        ("radio.bs_noise_w_per_hz", 4e-12, "In dBm/Hz"),
        ("radio.bs_power_w", 20000.0, "In dBm or mW"),
        ("radio.d2e_power_max_w", [0.2, 23.0], "In dBm or mW"),
        ("compute.memory_bytes", [[0, 4.0, 4.0], [4e9] * 3], "In MB or GB"),
        ("compute.es_flops_per_s", 6e3, "In GFLOP/s"),
        ("compute.energy_coefficient", [[1e-35] * 4, [4e-11] * 4], "In J/FLOP"),
        ("control.energy_budget_j", [[2.0] * 4, [5e7] * 4], "In kJ, mJ or Wh"),
    ],
)
def test_an_implausible_number_is_read_with_one_warning(files, key, value, slip):
    with pytest.warns(InputWarning, match=rf"network.json: {key}\S* = .*hardly.*{slip}") as found:
        files(change_network=put(key.split("."), value))
    assert len(found) == 1


ZERO_REFUSED = [
    "workload.blocks",
    "workload.batch",
    "workload.local_steps",
    "workload.block_flops",
    "workload.activation_bits",
    "workload.block_static_bytes",
    "radio.d2e_bandwidth_hz",
    "radio.d2d_bandwidth_hz",
    "radio.bs_noise_w_per_hz",
    "radio.node_noise_w_per_hz",
    "radio.snr_gap",
    "radio.max_spectral_efficiency",
    "radio.harq_attempts",
    "radio.transport_block_bits",
    "compute.es_flops_per_s",
    "control.reference_latency_s",
    "control.divergence_target",
]


@pytest.mark.parametrize("key", ZERO_REFUSED)
def test_rates_noise_sizes_and_budgets_must_be_positive(files, key):
    with pytest.raises(InputError, match=f"^{key} = .*zero"):
        files(change_network=put(key.split("."), 0))


WRONG_DECISIONS = [
    (put(["format"], "collapipe-network/1"), "format", "no such document"),
    (put(["extra"], 1), "extra", "unknown key"),
    (drop("policy"), "policy", "missing"),
    (drop("d2e_share"), "d2e_share", "missing"),
    (put(["segments"], [[6, 0, 0]]), "segments", "wrong shape"),
    (put(["segments", 1], [6, 0]), r"segments\[1\]", "wrong shape"),
    (put(["segments", 0, 1], 1.5), r"segments\[0\]\[1\]", "not whole"),
    (put(["segments", 0, 1], -1), r"segments\[0\]\[1\]", "negative"),
    (put(["segments", 0, 1], 2**31 - 1), r"segments\[0\]\[1\]", "no model has as many"),
    (put(["micro_batches", 1], 0), r"micro_batches\[1\]", "zero"),
    (put(["d2d_share", 0], [0.5] * 3), r"d2d_share\[0\]", "wrong shape"),
    (put(["d2d_power_w", 1, 3], float("nan")), r"d2d_power_w\[1\]\[3\]", "not a finite"),
    (put(["d2e_power_w", 0], "0.1"), r"d2e_power_w\[0\]", "not a number"),
]


@pytest.mark.parametrize(("change", "key", "problem"), WRONG_DECISIONS)
def test_a_wrong_decision_names_its_key(files, change, key, problem):
    with pytest.raises(InputError, match=rf"^{key} = .*{problem}"):
        files(change_decision=change)


def test_a_negative_zero_is_a_zero(files):
    def negate(document):
        radio = document["radio"]
        radio["d2e_interference_w"] = document["radio"]["bs_power_w"] = -0.0
        radio["cross_gain"][0][0][0][0] = document["control"]["energy_queue"][0][0] = -0.0

    problem, decision = files(negate, put(["d2d_power_w", 0, 0], -0.0))
    leaves = [np.asarray(one) for one in jax.tree.leaves((problem, decision))]
    assert any((one == 0).any() for one in leaves)
    assert not any(np.signbit(one).any() for one in leaves)


def test_files_that_are_no_documents(tmp_path):
    with pytest.raises(InputError, match=r"^file = .*nowhere\.json"):
        read_network(tmp_path / "nowhere.json")
    for text, message in (
        ("{", "^file = .*not JSON"),
        ("[]", "^format = 'list'"),
        ("3", "^format = 'int'"),
        ("{}", "^format = None"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=message):
            read_network(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not JSON"):
        read_network(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("name", "law"), [("rate_law", "ergodic"), ("duplex", "half"), ("retransmissions", "counted")]
)
def test_laws_of_the_radio_have_no_place_on_file(tmp_path, name, law):
    problem = as_problem(copy.deepcopy(make_documents()[0]))
    other = problem.replace(radio=problem.radio.replace(**{name: law}))
    with pytest.raises(InputError, match=rf"radio\.{name} = '{law}'"):
        write_network(tmp_path / "network.json", other)
    assert not (tmp_path / "network.json").exists()


def test_secure_aggregation_is_optional_and_comes_back_as_a_whole(files, tmp_path):
    assert files()[0].secure_aggregation is None
    problem, _ = files(put(["secure_aggregation"], secure_section()))
    path = tmp_path / "again.json"
    write_network(path, problem)
    again = read_network(path).secure_aggregation
    for name, number in secure_section().items():
        assert getattr(again, name) == pytest.approx(number)
    lacking = secure_section()
    del lacking["dropout_probability"]
    with pytest.raises(InputError, match=r"secure_aggregation\.dropout_probability"):
        files(put(["secure_aggregation"], lacking))
    with pytest.raises(InputError, match=r"secure_aggregation\.dropout_probability"):
        files(put(["secure_aggregation"], secure_section() | {"dropout_probability": 1.0}))


# --- memory of control units --------------------------------------------------------------------


def test_the_memory_of_control_units_is_optional_and_comes_back(files, tmp_path):
    problem, _ = files()
    assert problem.compute.control_unit_memory_bytes is None
    problem, _ = files(put(["compute", "control_unit_memory_bytes"], [1e9, 2e9]))
    assert problem.compute.control_unit_memory_bytes.tolist() == [1e9, 2e9]
    path = tmp_path / "again.json"
    write_network(path, problem)
    again = read_network(path)
    assert again.compute.control_unit_memory_bytes.tolist() == [1e9, 2e9]
    unlimited = problem.compute.replace(control_unit_memory_bytes=np.full(2, np.inf))
    write_network(path, problem.replace(compute=unlimited))
    assert read_network(path).compute.control_unit_memory_bytes is None
    with pytest.raises(InputError, match="control_unit_memory_bytes"):
        files(put(["compute", "control_unit_memory_bytes"], [1e9]))


# --- rows of the embedding ----------------------------------------------------------------------


def test_rows_that_travel_are_optional_and_come_back(files, tmp_path):
    assert files()[0].embedding_rows is None
    given = {name: np.asarray(number).tolist() for name, number in rows_section().items()}
    problem, _ = files(put(["embedding_rows"], given))
    path = tmp_path / "again.json"
    write_network(path, problem)
    again = read_network(path).embedding_rows
    for name, number in given.items():
        np.testing.assert_allclose(getattr(again, name), number)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("samples", [0, 2, 1]),
        ("samples", [1, 2, 3]),
        ("rows_read", [0, 9]),
        ("rows_read", [0, 3, 2]),
    ],
)
def test_points_of_rows_rise_from_zero(files, key, wrong):
    numbers = {"table_rows": 9, "row_bits": 8, "number_bits": 4}
    points = {"samples": [0, 1, 2], "rows_read": [0, 3, 5]}
    with pytest.raises(InputError, match=rf"embedding_rows\.{key}"):
        files(put(["embedding_rows"], numbers | points | {key: wrong}))
