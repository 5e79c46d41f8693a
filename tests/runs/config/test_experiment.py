import importlib
import json

import jax
import numpy as np
import pytest
from support import ROOT
from support.changed_keys import DEFAULT, KEYS, SECTIONS, TINY, changed, without

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.classification import Classification
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.sampling import sample_round
from collapipe_jax.learning.tasks.tagging import Tagging
from collapipe_jax.learning.tasks.translation import Translation
from collapipe_jax.runs.config import NAMED
from collapipe_jax.runs.config import checks as config_checks
from collapipe_jax.runs.config import experiment as build
from collapipe_jax.runs.config import system as build_system
from collapipe_jax.runs.config.files import read_config

pytestmark = pytest.mark.usefixtures("no_data")


@pytest.fixture
def no_work(monkeypatch):
    """Fail as soon as anything is drawn or read."""

    def work(*_, **__):
        raise AssertionError("work has started")

    monkeypatch.setattr(build_system, "sample_system", work)
    for objective in (Translation, Tagging, Classification):
        monkeypatch.setattr(objective, "load_data", work)


def refusal(config) -> InputError:
    with pytest.raises(InputError) as told:
        build.build_experiment(config)
    message = str(told.value)
    assert told.value.key in message
    assert repr(told.value.value) in message
    assert told.value.remedy
    assert told.value.remedy in message
    assert "\n" not in message
    return told.value


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", [*KEYS, *SECTIONS])
def test_missing_key_or_section_is_named(name):
    assert refusal(without(name)).key == name


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_unknown_key_is_named_with_the_nearest(section):
    keys = [key for key in (DEFAULT[section] if section else DEFAULT) if key not in SECTIONS]
    prefix = f"{section}." if section else ""
    misspelt = keys[0] + "s" if not keys[0].endswith("s") else keys[0] + "x"
    error = refusal(changed(prefix + misspelt, 1))
    assert error.key == prefix + misspelt
    assert error.remedy == f"Did you mean {prefix}{keys[0]}?"


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("wrong", [None, object, {"a": 1}], ids=["none", "class", "section"])
def test_wrong_type_is_named(name, wrong):
    assert refusal(changed(name, wrong)).key == name


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", KEYS)
def test_near_types_are_reported_apart(name):
    value = KEYS[name]
    near = {
        bool: (1, "True", 0.0),
        int: (True, 2.0, "2"),
        float: (True, "1.0", (1.0,)),
        str: (3, b"name", ("name",)),
        tuple: ("name", {1, 2}, (1.5,), (None,)),
    }
    for wrong in near[type(value)]:
        assert refusal(changed(name, wrong)).key == name


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    "name", [name for name, value in KEYS.items() if type(value) in (int, float)]
)
def test_numbers_out_of_range_are_named(name):
    is_level = name.endswith(("_db", "_dbm", "_dbm_per_hz"))
    kind = type(KEYS[name])
    follows = name.endswith(
        (".seed", ".downlink_interference_w", ".attention_dropout_rate", ".min_cluster_blocks")
    )  # another key, at -1
    least = -301.0 if is_level else kind(-2 if follows else -1)
    wrong = [least]
    wrong += [2**31, 2**80] if kind is int else [float("nan"), float("inf"), 1e300]
    for number in wrong:
        assert refusal(changed(name, number)).key == name


def test_integers_become_floats_and_lists_tuples():
    config = changed("radio.d2e_bandwidth_hz", 20_000_000)
    config = changed("training.micro_batch_choices", [1, 2, 4], config)
    experiment = config_checks.check_config(config).to_dict()
    assert type(experiment["radio"]["d2e_bandwidth_hz"]) is float
    assert experiment["training"]["micro_batch_choices"] == (1, 2, 4)
    assert experiment == TINY.to_dict()


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("network.clusters", 0, ""),
        ("network.d2d_min_distance_m", 0.0, ""),
        ("propagation.d2e_decorrelation_distance_m", 0.0, ""),
        ("dynamics.availability", 1.5, "<= 1"),
        ("dynamics.fading_correlation", 1.01, "<= 1"),
        ("dynamics.velocity_correlation", 1.01, "<= 1"),
        ("dynamics.round_interval_s", 0.0, ""),
        ("dynamics.speed_m_per_s", 2e5, "round_interval_s"),
        ("propagation.d2d_decorrelation_distance_m", 0.0, ""),
        ("devices.memory_share", 1.5, "> 0 and <= 1"),
        ("devices.utilisation", 0.0, ""),
        ("devices.control_unit", "pocket_calculator", "jetson_nano"),
        ("devices.kinds", (), "jetson_nano"),
        ("radio.d2d_bandwidth_hz", 0.0, ""),
        ("radio.max_spectral_efficiency", 0.0, ""),
        ("radio.rate_law", "shannon", "ergodic"),
        ("radio.harq_attempts", 0, ""),
        ("propagation.d2e_path_loss", "hata", "macro_2ghz"),
        ("propagation.d2d_path_loss", "hata", "d2d_outdoor"),
        ("propagation.d2e_path_loss", "jax.numpy:negative", "loss in dB, which is positive"),
        ("propagation.d2d_path_loss", "jax.numpy:negative", "loss in dB, which is positive"),
        ("control.divergence_ratio", 1.0, "> 1"),
        ("control.divergence_ratio", 0.5, "> 1"),
        ("control.device_budget_j", 0.0, ""),
        ("policy.name", "best", "dssra, dssra_wide, dssra_offline, greedy, alternating"),
        ("policy.micro_batches", 0, ""),
        ("model.heads", 3, "divisor of model.width"),
        ("model.width", 15, "even"),
        ("model.encoder_blocks", 0, ""),
        ("model.dropout_rate", 1.0, "< 1"),
        ("model.label_smoothing", 1.0, "< 1"),
        ("task.vocabulary_size", 3, "at least 4"),
        ("task.source_length", 0, "> 0"),
        ("task.source_length", 1, "2 or more"),
        ("task.target_length", 1, "2 or more"),
        ("task.concentration", 1e-9, ">= 0.001"),
        ("task.piece_dropout", 1.5, "<= 1"),
        ("task.validation_pairs", 0, ""),
        ("training.micro_batch_choices", (), "like (1, 2"),
        ("training.rounds", 0, ""),
        ("training.client_optimizer", "adagrad", "adam"),
        ("training.decoder_optimizer", "adagrad", "adam"),
        ("training.server_optimizer", "adagrad", "adam"),
        ("training.server_optimizer", "adamw", "adam"),
        ("training.schedule", "linear", "cosine"),
        ("training.erased_together", "step", "micro_batch, round"),
        ("training.survivor_weight", "none", "survival, pooled"),
        ("learning.bound", "two_steps", "one_step, local_steps"),
        ("learning.step_smoothness", 0.1, "local_steps"),
        ("training.warmup_steps", 12, "below 12"),
        ("training.client_learning_rate", 0.0, ""),
        ("training.decoder_learning_rate", 0.0, ""),
        ("training.weight_decay", 0.1, "adamw"),
        ("training.client_moments", "mean", "keep, average, reset"),
        ("training.server_average", 1.0, "< 1"),
        ("evaluation.by_cluster", True, "Give False"),
        ("evaluation.every_rounds", 0, ""),
        ("evaluation.beams", 0, ""),
        ("evaluation.length_penalty", -1.0, ">= 0"),
        ("checkpoint_every_rounds", 0, "> 0"),
    ],
)
def test_value_that_cannot_be_is_refused_before_any_work(name, value, remedy):
    error = refusal(changed(name, value))
    assert error.key == name
    assert error.value == value
    assert remedy in error.remedy


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.pretrained", "bert"),
        ("task.domains", "domains.json"),
        ("task.labels", 3),
        ("task.piece_dropout", 0.1),
        ("task.text_column", "body"),
    ],
)
def test_what_translation_does_not_read_is_refused(name, value):
    error = refusal(changed(name, value))
    assert (error.key, error.value) == (name, value)
    assert "translation does not read it" in error.problem


def test_labels_that_training_counts_are_no_reason_to_refuse():
    sizes = {"network.clusters": 2, "network.devices": 2}
    files = {"task.train": "a.csv", "task.test": "b.csv"}
    config = read_config("classification", files | sizes)
    build.check_experiment(config)
    assert config.task.labels == 0


def test_a_share_is_not_priced_beside_adapters():
    config = changed("model.adapter_rank", 2)
    config.payload.trained_fraction = 0.5
    with pytest.raises(InputError, match=r"trained_fraction = 0\.5: the adapters themselves"):
        config_checks.check_config(config)


@pytest.mark.parametrize(
    ("key", "value"), [("model.adapter_freezes_a", True), ("model.base_dtype", "bfloat16")]
)
def test_keys_of_adapters_are_refused_where_there_are_none(key, value):
    config = changed(key, value)
    with pytest.raises(InputError, match=f"{key} = .*no adapters are trained"):
        config_checks.check_config(config)
    config.model.adapter_rank = 2
    config_checks.check_config(config)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training.client_moments", "average"),
        ("training.control_variates", True),
        ("network.clusters", 1),
    ],
)
def test_what_secure_aggregation_cannot_sum_is_refused(name, value):
    config = changed("secure_aggregation.enabled", True)
    error = refusal(changed(name, value, config))
    assert (error.key, error.value) == (name, value)
    assert "set secure_aggregation.enabled to False" in error.remedy


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("bits", [1, 2])
def test_a_grid_whose_residuals_may_grow_is_refused(bits):
    error = refusal(changed("payload.update_number_bits", bits))
    assert (error.key, error.value) == ("payload.update_number_bits", bits)


@pytest.mark.usefixtures("no_work")
def test_updates_are_rounded_once():
    config = changed("secure_aggregation.enabled", True)
    error = refusal(changed("payload.update_number_bits", 8, config))
    assert (error.key, error.value) == ("payload.update_number_bits", 8)
    assert "secure_aggregation.ring_bits" in error.remedy


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.adapter_rank", 2),
        ("secure_aggregation.enabled", True),
        ("training.control_variates", True),
        ("training.client_moments", "average"),
        ("payload.update_number_bits", 8),
    ],
)
def test_rows_that_travel_refuse_what_needs_whole_tables(name, value):
    error = refusal(changed(name, value, changed("payload.embedding_rows", "touched")))
    assert (error.key, error.value) == ("payload.embedding_rows", "touched")
    assert error.remedy.startswith("Give all, or set ")


@pytest.mark.usefixtures("no_work")
def test_rows_that_travel_tell_what_privacy_hides():
    config = changed("payload.embedding_rows", "touched", changed("privacy.epsilon", 3.0))
    config.training.embedding_rate_factor = 1.0
    assert refusal(config).key == "payload.embedding_rows"


def test_rows_that_travel_go_with_rounding_without_residuals():
    config = changed("payload.embedding_rows", "touched")
    config.payload.update({"update_number_bits": 8, "error_feedback": False})
    config_checks.check_config(config)


def test_devices_of_one_cluster_are_parties_of_their_own():
    config = changed("secure_aggregation.enabled", True, changed("network.clusters", 1))
    config.policy.name = "vanilla_fl"
    config_checks.check_config(config)


@pytest.mark.usefixtures("no_work")
def test_two_remedies_for_one_drift_are_refused():
    config = changed("training.control_variates", True)
    error = refusal(changed("training.proximal_weight", 0.1, config))
    assert (error.key, error.value) == ("training.proximal_weight", 0.1)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("step", [0.0, 0.3])
def test_a_step_outside_the_bound_for_local_steps_is_refused(step):
    config = changed("learning.bound", "local_steps")
    error = refusal(changed("learning.step_smoothness", step, config))
    assert (error.key, error.value) == ("learning.step_smoothness", step)
    assert f"{1 / (4 * TINY.training.local_steps):g}" in error.problem


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "value"),
    [("training.erased_together", "round"), ("training.survivor_weight", "pooled")],
)
def test_clients_without_a_pipeline_know_one_law_of_losses(name, value):
    error = refusal(changed(name, value, changed("policy.name", "splitfed")))
    assert (error.key, error.value) == (name, value)
    assert "splitfed" in error.problem


@pytest.mark.usefixtures("no_work")
def test_one_wrong_entry_of_a_list_is_reported():
    error = refusal(changed("training.micro_batch_choices", (1, 3)))
    assert (error.key, error.value) == ("training.micro_batch_choices", (1, 3))
    assert error.problem == "3 does not divide the batch of 4"
    error = refusal(changed("devices.kinds", ("jetson_nano", "abacus")))
    assert (error.key, error.value) == ("devices.kinds", "abacus")


def test_network_that_holds_no_encoder():
    error = refusal(changed("devices.memory_share", 1e-7))
    assert (error.key, error.value) == ("model.encoder_blocks", 2)
    assert "devices.memory_share" in error.remedy


@pytest.mark.parametrize("key", ["control.control_unit_budget_j", "control.device_budget_j"])
def test_budget_under_its_floor_names_the_floor(key):
    def with_budget(budget_j, availability=1.0, speed_m_per_s=0.0):
        config = changed(key, budget_j)
        config.control.control_unit_margin = 0.0
        config.dynamics.availability = availability
        config.dynamics.speed_m_per_s = speed_m_per_s
        return config

    error = refusal(with_budget(1e-6))
    assert error.key == key
    floor = float(error.remedy.rpartition(" ")[2])
    assert str(f"{floor:.4g}") in error.problem
    weight = np.full(2, 0.5)
    build_system.build_system(with_budget(1.01 * floor), weight)
    with pytest.raises(InputError, match=key):
        build_system.build_system(with_budget(0.99 * floor), weight)
    # A round that a cluster sits out costs nothing, so the floor binds nobody then.
    build_system.build_system(with_budget(0.99 * floor, availability=0.5), weight)
    # Nor does it bind who walks: it is the floor of the start alone.
    build_system.build_system(with_budget(0.99 * floor, speed_m_per_s=1.4), weight)


@pytest.mark.parametrize(
    ("name", "value"),
    [("radio.d2d_power_max_dbm", -300.0), ("network.cell_radius_m", 1e25)],
)
def test_network_whose_rounds_never_end(name, value):
    assert refusal(changed(name, value)).key == "radio"


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("task.split", "by_author", "task.split"),
        ("task.pairs", 50, "task.pairs"),
        ("task.vocabulary_size", 20, "task.vocabulary_size"),
        ("task.corpus", "no_such_file.txt", "task.corpus"),
        ("network.clusters", 200, "network.clusters"),
    ],
)
def test_data_that_cannot_be_is_refused(name, value, key, monkeypatch):
    monkeypatch.setattr(build, "make_system", lambda *_: None)
    error = refusal(changed(name, value))
    assert error.key == key
    if name == "task.corpus":
        assert "COLLAPIPE_DATA" in error.remedy


def test_lengths_that_fit_no_sentence(monkeypatch):
    monkeypatch.setattr(build, "make_system", lambda *_: None)
    error = refusal(changed("task.source_length", 2))
    assert "task.source_length" in error.key
    assert "task.vocabulary_size" in error.remedy


def test_misaligned_and_missing_text_below_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path))
    monkeypatch.setattr(build, "make_system", lambda *_: None)
    (tmp_path / "left.txt").write_text("one\ntwo\n")
    (tmp_path / "right.txt").write_text("eins\n")
    (tmp_path / "latin.txt").write_bytes(b"gr\xfcn\tgreen\n")
    for corpus, part in {
        "left.txt|right.txt": "2 and 1 lines",
        "left.txt|middle.txt": str(tmp_path),
        "left.txt": "no tab",
        "latin.txt": "UTF-8",
    }.items():
        error = refusal(changed("task.corpus", corpus))
        assert error.key == "task.corpus"
        assert part in error.problem


def test_experiment_is_saved_as_it_was_given_and_fits_together():
    experiment = build.build_experiment(TINY)
    assert experiment.config == TINY.to_dict()
    json.dumps(experiment.config, allow_nan=False)
    sizes = [len(indices) for indices in experiment.cluster_indices]
    assert sum(sizes) == len(experiment.task.data.train.source_ids)
    np.testing.assert_allclose(experiment.cluster_weight, np.array(sizes) / sum(sizes))
    weight = experiment.system.mean_problem.learning.cluster_weight
    np.testing.assert_allclose(weight, experiment.cluster_weight, rtol=1e-6)
    assert (
        experiment.system.mean_problem.workload.blocks == experiment.task.model.sizes.encoder_blocks
    )


def test_rows_that_travel_are_those_of_the_texts_that_rounds_draw():
    experiment = build.build_experiment(changed("payload.embedding_rows", "touched"))
    assert experiment.rules.touched_rows
    rows, training = experiment.system.mean_problem.embedding_rows, TINY.training
    texts, own = np.asarray(experiment.task.data.train.source_ids), []
    for index in range(200):
        sizes = index, training.local_steps, training.batch
        drawn = texts[sample_round(0, experiment.cluster_indices, *sizes)]
        own += [len(np.unique(drawn[:, n])) for n in range(drawn.shape[1])]
    found = np.interp(training.batch, rows.samples, rows.rows_read)
    np.testing.assert_allclose(found, np.mean(own), rtol=0.02)
    assert (rows.table_rows, rows.number_bits) == (200, 8)
    assert rows.row_bits == 16 * TINY.model.width


def test_every_shipped_configuration_passes_the_checks(monkeypatch):
    monkeypatch.chdir(ROOT)
    files = [f"configs.{path.stem}" for path in sorted((ROOT / "configs").glob("[!_]*.py"))]
    variants = dict(NAMED)
    for name in files:
        variants[name] = getattr(importlib.import_module(name), "VARIANTS", ("",))
    for name, known in variants.items():
        for variant in known:
            config = read_config(f"{name}:{variant}" if variant else name)
            find_task(config.task.kind).make_sizes(config)
            build.build_optimizers(config)


@pytest.mark.parametrize(
    ("changes", "key", "remedy"),
    [
        ({"backend": "threads"}, "pipeline.backend", "vmapped"),
        ({"backend": "vmapped", "micro_batches": 3}, "pipeline.micro_batches", "divisor"),
        ({"micro_batches": 2}, "pipeline.micro_batches", "another backend"),
        ({"micro_batches": 0}, "pipeline.micro_batches", "another backend"),
        ({"backend": "vmapped", "micro_batches": 0}, "pipeline.micro_batches", "sharded"),
        ({"backend": "vmapped", "schedule": "1f1b"}, "pipeline.schedule", "another backend"),
        (
            {"backend": "sharded", "schedule": "1f1b", "micro_batches": 0},
            "pipeline.micro_batches",
            "gpipe",
        ),
        ({"capacity": 1}, "pipeline.capacity", "network.devices"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(changes, key, remedy):
    config = changed("model.encoder_blocks", 3)
    config.pipeline.update(changes)
    error = refusal(config)
    assert error.key == key
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("server_blocks", "capacity", "key"),
    [
        (4, 0, "model.server_blocks"),
        pytest.param(9, 0, "model.server_blocks", marks=pytest.mark.slow),
        pytest.param(0, 1, "pipeline.capacity", marks=pytest.mark.slow),
    ],
)
def test_blocks_at_the_server_that_contradict_other_keys_are_refused(server_blocks, capacity, key):
    config = changed("model.encoder_blocks", 3)
    config.model.server_blocks, config.pipeline.capacity = server_blocks, capacity
    assert refusal(config).key == key
    config.model.server_blocks = 1  # of the others each device has room for one
    config.model.min_cluster_blocks = 2
    build.check_experiment(config)
    config.model.min_cluster_blocks = 3
    assert refusal(config).key == "model.min_cluster_blocks"
    config.policy.deadline, config.model.min_cluster_blocks = 2.0, 0
    assert refusal(config).key == "policy.deadline"


def test_too_few_devices_of_several_hosts_are_reported_before_any_work(no_work, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    config = changed("pipeline.backend", "sharded")
    config.network.update({"clusters": 3, "devices": 3})
    with pytest.raises(InputError, match="fit the 8 devices"):
        build.build_experiment(config)
