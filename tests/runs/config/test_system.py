"""Every key of a configuration reaches what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_corpora
from support.changed_keys import KEYS, TINY, changed, leaves

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated.learner import apply_gradient
from collapipe_jax.learning.models.counts import block_counts
from collapipe_jax.learning.tasks import bert_tasks
from collapipe_jax.learning.tasks.causal_lm import LanguageModelling
from collapipe_jax.learning.tasks.classification import Classification
from collapipe_jax.learning.tasks.tagging import Tagging
from collapipe_jax.learning.tasks.translation import Translation
from collapipe_jax.runs.config import experiment as build
from collapipe_jax.runs.config import system as build_system
from collapipe_jax.runs.config.files import read_config


@pytest.mark.parametrize("call", [build_system.system_params, build.build_experiment])
@pytest.mark.parametrize("config", ["quickstart", TINY.to_dict()])
def test_what_is_no_configuration_is_named(call, config):
    with pytest.raises(InputError, match="Give what read_config returns") as caught:
        call(config)
    assert caught.value.key == "config"


@pytest.mark.parametrize("name", ["clinc150", "bc5cdr", "tatoeba", "causal_lm", "quickstart"])
def test_the_network_of_a_named_configuration_holds_its_model(name):
    config = read_config(name)
    build_system.make_system(config, build_system.system_params(config))


def tree_of(params):
    flat, structure = jax.tree.flatten(params)
    return [np.asarray(leaf).tolist() for leaf in flat], structure


OTHER = {
    "network.order": "tour",
    "devices.control_unit": "jetson_tx2",
    "devices.kinds": ("jetson_nano",),
    "payload.update_number_bits": 8,
    "payload.error_feedback": False,
    "payload.embedding_rows": "touched",
    "payload.row_law_scale": 0.5,
    "radio.rate_law": "ergodic",
    "radio.duplex": "half",
    "radio.retransmissions": "reliable",
    "radio.downlink_interference_w": 3e-12,
    "learning.bound": "one_step",
    "control.divergence_ratio": 1.5,
    "control.moments_move": True,
    "propagation.d2e_path_loss": "free_space_2ghz",
    "propagation.d2d_path_loss": "winner_b1_sight",
    "model.rematerialise": True,
    "model.dropout_rate": 0.0,
    "model.attention_dropout_rate": 0.0,
    "training.micro_batch_choices": (1, 2),
    "training.client_optimizer": "sgd",
    "training.client_moments": "average",
    "training.control_variates": True,
    "training.decoder_optimizer": "sgd",
    "training.server_optimizer": "momentum",
    "training.schedule": "constant",
    "training.clip_norm": 4.0,
    "model.compute_dtype": "bfloat16",
}


def other(name):
    """Another value for a key."""
    if name in OTHER:
        return OTHER[name]
    value = dict(leaves(TINY.to_dict()))[name]
    return value + 1 if isinstance(value, int) else value * 0.5 + 0.1


OWN = ("model.pretrained", "model.seed")  # of the parameters, not of the sizes
PLACES = ("model.server_blocks", "model.min_cluster_blocks")  # of the parameters
HEADS = ("model.pooling", "model.head")  # of the server's part
ADAPTERS = {  # beside a rank
    "model.adapter_alpha": 8.0,
    "model.adapter_targets": ("key",),
    "model.adapter_freezes_a": True,
    "model.base_dtype": "bfloat16",
}
NGRAMS = {"model.ngram_buckets": 8, "model.word_ngrams": 2, "model.ngram_combiner": "sqrtn"}
CAUSAL = {"model.key_value_heads": 1, "model.head_size": 6, "model.query_bias": True}
CAUSAL |= {"model.query_key_norm": True}
SECURE = "secure_aggregation."
IN_SYSTEM = [
    *(
        name
        for name in KEYS
        if name.split(".")[0]
        in ("network", "propagation", "dynamics", "devices", "radio", "payload", "learning")
        and not name.startswith(("network.file", "network.seed"))  # see test_networks.py
    ),
    *(name for name in KEYS if name.startswith("control.")),
    *("model." + key for key in ("width", "heads", "feed_forward_width", "encoder_blocks")),
    *("model." + key for key in ("decoder_blocks", "dropout_rate", "rematerialise")),
    "model.server_blocks",
    "model.attention_dropout_rate",
    *("task." + key for key in ("vocabulary_size", "source_length", "target_length")),
    *("training." + key for key in ("local_steps", "batch", "micro_batch_choices")),
    *("training." + key for key in ("client_optimizer", "client_moments")),
    *("training." + key for key in ("control_variates", "proximal_weight")),
    "policy.micro_batches",
]


def test_the_downlink_has_the_uplinks_interference_unless_it_has_its_own():
    config = changed("radio.d2e_interference_w", 7e-13)
    assert build_system.build_system_params(config).radio.downlink_interference_w == 7e-13
    config.radio.downlink_interference_w = 0.0
    assert build_system.build_system_params(config).radio.downlink_interference_w == 0.0


@pytest.mark.parametrize("name", IN_SYSTEM)
def test_every_key_of_the_network_changes_what_is_drawn_from(name):
    weight = np.full(2, 0.5)
    # Some keys are only read beside others: how to walk, of nobody who stands.
    base = changed("dynamics.speed_m_per_s", 1.4)
    base.learning.update(bound="local_steps", step_smoothness=0.02)
    if name == "payload.error_feedback":  # of updates in few bits
        base.payload.update_number_bits = 8
    if name.startswith("payload.row_law"):  # of rows that travel
        base.payload.update({"embedding_rows": "touched", "row_law_scale": 1.0})
    before = tree_of(build_system.build_system_params(base, weight))
    value = {"model.heads": 4, "model.width": 18}.get(name) or other(name)
    after = tree_of(build_system.build_system_params(changed(name, value, base), weight))
    assert before != after


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in KEYS
        if name.startswith("model.")
        and name not in (*OWN, *PLACES, *HEADS, *ADAPTERS, *CAUSAL, *NGRAMS, "model.attention")
    ],
)
def test_every_key_of_the_model_changes_it(name):
    value = {"model.heads": 4, "model.width": 18, "model.label_smoothing": 0.3}.get(name)
    value = other(name) if value is None else value
    assert Translation.make_sizes(changed(name, value)) != Translation.make_sizes(TINY)


@pytest.mark.parametrize(("name", "value"), ADAPTERS.items())
def test_every_key_of_adapters_changes_the_model(name, value):
    config = changed("model.adapter_rank", 2)
    assert Translation.make_sizes(changed(name, value, config)) != Translation.make_sizes(config)


@pytest.mark.parametrize("name", [name for name in KEYS if name.startswith(SECURE)])
def test_every_key_of_secure_aggregation_changes_price_or_training(name):
    weight = np.full(2, 0.5)

    def both(config):
        rules = tree_of(build.build_rules(config))
        return tree_of(build_system.build_system_params(config, weight)), rules

    on = changed("secure_aggregation.enabled", True)
    if name == "secure_aggregation.enabled":
        after = both(TINY)
    else:
        value = {"secure_aggregation.ring_bits": 20}.get(name) or other(name)
        after = both(changed(name, value, on))
    in_price, in_training = (a != b for a, b in zip(both(on), after, strict=True))
    only_trained = name.endswith(("clip", "threshold"))
    only_priced = name.endswith(("secret_bits", "bytes_per_s"))
    assert (in_price, in_training) == (not only_trained, not only_priced)


def test_rows_are_counted_where_they_are_averaged_over_their_readers():
    on = changed("secure_aggregation.enabled", True)
    every = changed("training.embedding_rate_factor", 1.0, on)
    bits = [
        float(build_system.build_system_params(config).secure_aggregation.count_bits)
        for config in (on, every)
    ]
    assert bits == [32 * (1 + TINY.task.vocabulary_size), 32]


@pytest.mark.parametrize(("name", "value"), NGRAMS.items())
def test_every_key_of_n_grams_changes_the_embedding_of_bert(name, value):
    before = changed("model.ngram_buckets", 4)
    assert bert_tasks.make_sizes(before) != bert_tasks.make_sizes(changed(name, value, before))


def test_a_pair_of_words_is_priced_as_one_row_more_of_every_piece():
    before = changed("model.ngram_buckets", 4)
    after = changed("model.word_ngrams", 2, before)
    one, two = (bert_tasks.embedding_work(config)["embed_flops"] for config in (before, after))
    assert two - one == before.task.source_length * before.model.width


@pytest.mark.parametrize(("name", "value"), CAUSAL.items())
def test_every_key_of_a_language_model_changes_its_block(name, value):
    config = changed("task.vocabulary_size", 300, changed("task.kind", "causal_lm"))
    before, after = (
        LanguageModelling.make_sizes(each) for each in (config, changed(name, value, config))
    )
    assert before != after
    assert block_counts(before, 8).parameters != block_counts(after, 8).parameters


def test_the_kernel_of_attention_is_chosen():
    config = changed("model.compute_dtype", "bfloat16")
    config.model.update({"attention": "cudnn", "dropout_rate": 0.0})
    assert Translation.make_sizes(config).attention == "cudnn"


def updates(config):
    """What the optimisers do to one weight over four steps of a large gradient."""
    optimizers = build.build_optimizers(config)
    found = []
    for tx in optimizers.transformations:
        params = {"embedding": jnp.ones(2), "encoder": jnp.ones(2)}
        state = tx.init(params)
        for step, gradient in enumerate((3.0, -1.0, 2.0, 5.0)):
            slope = jax.tree.map(lambda leaf, g=gradient: g * leaf.at[1].set(1.0), params)
            params, state = apply_gradient(tx, slope, (params, state), step)
        found.append(jax.tree.map(lambda leaf: leaf.tolist(), params))
    return found


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("training.client_optimizer", (True, False, False)),
        ("training.decoder_optimizer", (False, True, False)),
        ("training.server_optimizer", (False, False, True)),
        ("training.client_learning_rate", (True, False, False)),
        ("training.decoder_learning_rate", (False, True, False)),
        ("training.server_learning_rate", (False, False, True)),
        ("training.weight_decay", (False, False, False)),
        ("training.schedule", (True, True, False)),
        ("training.warmup_steps", (True, True, False)),
        ("training.clip_norm", (True, True, False)),
        ("training.rounds", (True, True, False)),
        ("training.local_steps", (True, True, False)),
    ],
)
def test_every_key_of_the_optimisers_moves_only_its_own(name, moved):
    base, after = updates(TINY), updates(changed(name, other(name)))
    assert tuple(a != b for a, b in zip(base, after, strict=True)) == moved


def test_decay_moves_what_adamw_steps():
    base = changed("training.client_optimizer", "adamw")
    found = updates(base), updates(changed("training.weight_decay", 0.1, base))
    assert [a != b for a, b in zip(*found, strict=True)] == [True, False, False]
    assert found[0] == updates(TINY)  # without decay it is Adam


def test_averaged_moments_and_control_variates_are_sent_as_parameters_are():
    plain, moments, variates = (
        build_system.build_system_params(config).workload
        for config in (
            TINY,
            changed("training.client_moments", "average"),  # two of Adam
            changed("training.control_variates", True),
        )
    )
    for name in ("block_param_bits", "embedding_param_bits"):
        assert getattr(moments, name) == 3 * getattr(plain, name)
        assert getattr(variates, name) == 2 * getattr(plain, name)
    assert moments.block_static_bytes == plain.block_static_bytes
    assert variates.block_static_bytes == plain.block_static_bytes * 28 / 16
    assert moments.activation_bits == plain.activation_bits


def test_the_number_of_a_parameter_alone_is_rounded_and_its_residual_is_held():
    config = changed("payload.update_number_bits", 8)
    several = changed("training.client_moments", "average", config)  # two of Adam
    plain, rounded, with_moments = (
        build_system.build_system_params(each) for each in (TINY, config, several)
    )
    assert plain.workload.update_ratio == 1.0
    np.testing.assert_allclose(rounded.workload.update_ratio, 8.125 / 16, rtol=1e-7)
    np.testing.assert_allclose(with_moments.workload.update_ratio, (8.125 + 32) / 48, rtol=1e-7)
    assert rounded.workload.block_param_bits == plain.workload.block_param_bits
    static_bytes = plain.workload.block_static_bytes
    assert rounded.workload.block_static_bytes == static_bytes * 20 / 16


def test_residuals_follow_their_blocks_as_moments_do():
    config = changed("control.moments_move", True)
    rounded = changed("payload.update_number_bits", 8, config)
    without = changed("training.client_optimizer", "sgd", rounded)
    reset = changed("training.client_moments", "reset", rounded)
    bits = [
        float(build_system.build_system_params(each).control.switching.block_moment_bits)
        for each in (config, rounded, without, reset)
    ]
    assert bits == [bits[0], 1.5 * bits[0], 0.5 * bits[0], 0.5 * bits[0]]


ALL_TEXTS = ("task.seed", "seed", "task.vocabulary_size", "task.source_length")
FILES = tuple(
    "task." + key for key in ("train", "validation", "test", "samples", "validation_samples")
)
LABELLED = (*FILES, "task.skip_broken", "task.vocabulary", "task.lowercase", "task.labels")
READS = {
    Translation: (
        *ALL_TEXTS,
        *FILES,
        *("task." + key for key in ("corpus", "reverse", "pairs", "validation_pairs")),
        *("task." + key for key in ("test_pairs", "target_length")),
    ),
    Tagging: (*ALL_TEXTS, *LABELLED),
    Classification: (
        *ALL_TEXTS,
        *LABELLED,
        *("task." + key for key in ("domains", "text_column", "label_column")),
    ),
}


class Noted(dict):
    """A configuration, or a section of one, that notes which of its keys are read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("objective", READS)
def test_every_key_of_the_task_reaches_the_data(objective, tmp_path):
    config = TINY.to_dict()
    if objective is not Translation:
        config["task"] |= tiny_corpora.write_sets(tmp_path, objective.__name__.lower())
    task = Noted(config["task"])
    config = Noted({**config, "task": task})
    objective.load_data(config)
    read = (config.read & {"seed"}) | {f"task.{key}" for key in task.read}
    assert read == set(READS[objective])


def test_no_key_of_the_task_is_forgotten():
    elsewhere = {"task.kind", "task.split", "task.concentration", "task.packing"}
    # Of objectives, which draw from the data.
    elsewhere |= {"task.piece_dropout", "task.whole_words", "task.masked_share", "task.tagged"}
    named = {name for names in READS.values() for name in names} - {"seed"}
    assert named | elsewhere == {name for name in KEYS if name.startswith("task.")}


def test_split_and_seed_reach_the_clusters():
    dirichlet = changed("task.split", "dirichlet")
    built = [
        build.build_experiment(config).cluster_indices
        for config in (
            TINY,
            changed("seed", 5),
            dirichlet,
            changed("task.concentration", 0.05, dirichlet),
        )
    ]
    first = [tuple(indices[0].tolist()) for indices in built]
    assert len(set(first)) == len(first)


def test_the_door_of_python_tries_budgets_too():
    always = changed("dynamics.availability", 1.0)
    poor = changed("control.device_budget_j", 1e-9, always)
    build_system.build_system_params(poor)
    with pytest.raises(InputError, match="device_budget_j"):
        build_system.system_params(poor)
