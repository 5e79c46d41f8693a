"""Rules across keys: values that are right by themselves, and contradict each other.

A row names the keys, the condition that breaks the rule, the problem and the remedy. The first
key is to blame. Conditions get the values of the keys, and so do texts: ``{1}`` is the second
value, and ``{result}`` is what the condition gave. A condition that raises an ``InputError`` says
itself what is wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError, Step, ValidValues, rename_error_keys
from collapipe_jax.core.quantity import check_array, check_product
from collapipe_jax.edge.network.propagation import amplifying_distance_m
from collapipe_jax.edge.policies.client_policies import find_count, find_cut
from collapipe_jax.edge.policies.registry import (
    BEST_MODE,
    PolicyEntry,
    check_modes,
    policy_entry,
)
from collapipe_jax.learning.federated import privacy as accountant
from collapipe_jax.learning.federated.secure_aggregation import LEAST_ANSWERS
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_parameters
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.learning.tasks.registry import TASKS, find_task
from collapipe_jax.learning.tasks.scores import check_installed
from collapipe_jax.runs.config.default import DEFAULTS

_LONGEST_WALK_M = 1e6  # single precision tells no place in a disc after it


class Rule(NamedTuple):
    """A rule across keys."""

    keys: tuple[str, ...]
    is_broken: Callable[..., object]
    problem: str = ""
    remedy: str = ""


def check_rules(rules: Iterable[Rule], config: ValidValues, step: Step) -> None:
    """Report the rules that a configuration breaks; one with a wrong key is left out."""
    for rule in rules:
        with step():
            values = [config[key] for key in rule.keys]
            if result := rule.is_broken(*values):
                problem, remedy = (
                    text.format(*values, result=result) for text in (rule.problem, rule.remedy)
                )
                raise InputError(rule.keys[0], values[0], problem, remedy)


def _if_above(limit: float, value: float) -> float | None:
    """The value, if it is above a limit."""
    return value if value > limit else None


def _may_be_run(policy: str, modes: Sequence[str]) -> list[PolicyEntry]:
    """The policies that may run a network: the policy, or its modes."""
    return [policy_entry(name) for name in (modes if policy == BEST_MODE else (policy,))]


def _may_have_clients(policy: str, modes: Sequence[str]) -> bool:
    """Whether clients may train copies of the model."""
    return any(entry.by_clients for entry in _may_be_run(policy, modes))


def _may_have_pipelines(policy: str, modes: Sequence[str]) -> bool:
    """Whether clusters may train a pipeline each."""
    return any(not entry.by_clients for entry in _may_be_run(policy, modes))


# --- Sizes --------------------------------------------------------------------------------------


def _product(*keys: str) -> Rule:
    """Integers whose product has 32 bits."""
    return Rule(keys, lambda *sizes: check_product(dict(zip(keys, sizes, strict=True))))


def _array(what: str, keys: tuple[str, ...], entries: Callable[..., int] | None = None) -> Rule:
    """Sizes of an array that has room in memory; so many entries, or their product."""

    def check(*values: Any) -> None:
        sizes = {key: value for key, value in zip(keys, values, strict=True) if type(value) is int}
        check_array(what, sizes, None if entries is None else entries(*values))

    return Rule(keys, check)


def _check_cut(cut: str, blocks: int) -> None:
    find_cut(cut, blocks)


def _may_hold_less(cut: str, least: int, blocks: int, policy: str) -> bool:
    """Whether clients of a mode may hold fewer blocks than a cluster has to keep."""
    if policy != BEST_MODE or least <= 0:
        return False
    held = find_cut(cut, blocks)
    return isinstance(held, str) or held < least


def _count(key: str, most: str) -> Rule:
    """A number from 1 to that of another key, or the name of a rule."""

    def check(count: int | str, limit: int) -> None:
        find_count(key, count, range(1, limit + 1))

    return Rule((key, most), check)


_PAIR_BYTES = 200  # of a synthetic pair of sentences, as Python holds it

_SIZE_RULES = (
    _array(
        "gains between all nodes",
        ("network.clusters", "network.devices"),
        lambda clusters, devices: (clusters * (devices + 1)) ** 2,
    ),
    _array(
        "partitions of all clusters",
        ("network.clusters", "network.devices", "model.encoder_blocks"),
    ),
    _product("training.batch", "training.local_steps"),
    _product("training.rounds", "training.local_steps"),
    Rule(("policy.cut", "model.encoder_blocks"), _check_cut),
    Rule(("policy.modes",), check_modes),
    Rule(
        ("policy.cut", "model.min_cluster_blocks", "model.encoder_blocks", "policy.name"),
        _may_hold_less,
        "clients of a mode may hold fewer blocks than the {1} of model.min_cluster_blocks",
        "Give {1} or more",
    ),
    _count("policy.accumulation", "training.batch"),
    _count("policy.client_micro_batches", "training.batch"),
    _count("policy.clients", "network.devices"),
    Rule(
        ("evaluation.bleu_tokenizer",),
        lambda name: check_installed("evaluation.bleu_tokenizer", name),
    ),
)

_TRAINED_SIZE_RULES = (
    _array(
        "the texts of a round",
        ("training.local_steps", "training.batch", "network.clusters", "task.source_length"),
    ),
    _array(
        "the encoder",
        ("model.width", "model.feed_forward_width", "model.encoder_blocks"),
        lambda width, inner, blocks: blocks * block_parameters(width, inner),
    ),
    _array(
        "the table of tokens",
        ("task.vocabulary_size", "model.ngram_buckets", "model.width"),
        lambda rows, buckets, width: (rows + buckets) * width,
    ),
    _array(
        "the corpus",
        ("task.pairs", "task.corpus", "task.train"),
        lambda pairs, corpus, train: (
            pairs * _PAIR_BYTES // NUMBER_BYTES if corpus == "synthetic" and not train else 0
        ),
    ),
)


# --- Networks -----------------------------------------------------------------------------------

_RADIUS = {"d2e": "network.cell_radius_m", "d2d": "network.cluster_radius_m"}
"""Of the nodes, by their kind of link."""
_NETWORK_RULES = (
    *(
        Rule(
            (f"network.{link}_min_distance_m", radius),
            lambda distance_m, radius_m: distance_m > radius_m,
            f"above {radius} = {{1:g}}",
            "Lower it, or raise the radius",
        )
        for link, radius in _RADIUS.items()
    ),
    *(
        Rule(
            (f"propagation.{link}_path_loss", f"network.{link}_min_distance_m", radius),
            amplifying_distance_m,
            "its loss at {result:.3g} m is no number of dB from 0 on",
            "Return the loss in dB, which is positive",
        )
        for link, radius in _RADIUS.items()
    ),
    Rule(
        ("dynamics.speed_m_per_s", "dynamics.round_interval_s"),
        lambda speed_m_per_s, interval_s: _if_above(_LONGEST_WALK_M, speed_m_per_s * interval_s),
        "a way of {result:g} m a round",
        "Lower it, or dynamics.round_interval_s",
    ),
)


# --- Pipelines ----------------------------------------------------------------------------------


def _do_not_divide(counts: Any, batch: int) -> int | None:
    """The first number of micro-batches that does not divide the batch."""
    counts = counts if isinstance(counts, tuple) else (counts,)
    return next((count for count in counts if count and batch % count), None)


_PIPELINE_RULES = (
    *(
        Rule(
            (key, "training.batch"),
            _do_not_divide,
            "{result} does not divide the batch of {1}",
            "Give a divisor of training.batch",
        )
        for key in ("training.micro_batch_choices", "pipeline.micro_batches")
    ),
    Rule(
        ("pipeline.micro_batches", "pipeline.backend"),
        lambda count, backend: count != 1 and backend == "sequential",
        "the sequential backend does not read it",
        "Give 1, or another backend",
    ),
    Rule(
        ("pipeline.micro_batches", "pipeline.backend"),
        lambda count, backend: not count and backend == "vmapped",
        "the backend vmapped has one number for all rounds",
        "Give 1 or more, or sharded",
    ),
    Rule(
        ("control.moments_move", "policy.name", "policy.routes", "policy.modes"),
        lambda moves, name, routes, modes: (
            moves
            and (routes == "gateways" or "dssra_wide" in (modes if name == BEST_MODE else (name,)))
        ),
        "optimiser state that moves knows no gateways",
        "Give False, or a policy and routes without gateways",
    ),
    Rule(
        ("model.server_blocks", "model.encoder_blocks"),
        lambda server_blocks, blocks: server_blocks > blocks,
        "the encoder has {1}",
        "Give at most model.encoder_blocks",
    ),
    Rule(
        ("model.min_cluster_blocks", "model.encoder_blocks", "model.server_blocks"),
        lambda least, blocks, server_blocks: least >= 0 and least > blocks - server_blocks,
        "of {1} blocks the edge server holds {2} at least",
        "Give at most the others",
    ),
    Rule(
        (
            "policy.deadline",
            "model.min_cluster_blocks",
            "model.server_blocks",
            "model.encoder_blocks",
            "policy.name",
            "policy.modes",
        ),
        lambda deadline, least, server_blocks, blocks, *policy: (
            deadline and (least == 0 or server_blocks == blocks) and _may_have_pipelines(*policy)
        ),
        "clusters sit out by their blocks, and may have none",
        "Give 0, or leave them a block",
    ),
    Rule(
        ("pipeline.capacity", "network.devices", "model.encoder_blocks", "model.server_blocks"),
        lambda capacity, devices, blocks, server_blocks: (
            capacity * devices < blocks - server_blocks and capacity * devices
        ),
        "the devices of a cluster then hold {result} of {2} blocks less {3} at the edge server",
        "Raise it or network.devices, or give 0 for all blocks",
    ),
    Rule(
        ("pipeline.schedule", "pipeline.backend"),
        lambda schedule, backend: schedule == "1f1b" and backend == "vmapped",
        "the backend vmapped executes gpipe",
        "Give gpipe, or another backend",
    ),
    Rule(
        ("pipeline.micro_batches", "pipeline.schedule"),
        lambda count, schedule: not count and schedule == "1f1b",
        "the buffers of 1f1b are for one number",
        "Give 1 or more, or gpipe",
    ),
)


# --- Training -----------------------------------------------------------------------------------


def _is_read(key: str, kind: str) -> Rule:
    """A key that some tasks read has its default where the task of a run is another."""
    default = DEFAULTS[key]
    change = f"Give {default!r}" if default else "Clear it"
    return Rule(
        (key, "task.kind"),
        lambda value, of_run: value != default and key not in find_task(of_run).reads,
        "{1} does not read it",
        f"{change}, or set task.kind to {kind}",
    )


def _task_rules() -> list[Rule]:
    """One for each key that some tasks of the registry read, as it is now."""
    read_by = {key: kind for kind, task in reversed(TASKS.items()) for key in task.reads}
    return [_is_read(key, kind) for key, kind in sorted(read_by.items())]


def _is_no_step(size: float, bound: str, steps: int) -> float | None:
    """The largest step for which the bound for local steps holds, if this one is none."""
    largest = 1.0 / (4.0 * steps)
    return largest if bound != "one_step" and not 0.0 < size <= largest else None


_TRAINING_RULES = (
    Rule(
        ("training.warmup_steps", "training.rounds", "training.local_steps", "training.schedule"),
        lambda warmup, rounds, steps, law: (
            law == "cosine" and warmup >= rounds * steps and rounds * steps
        ),
        "no less than the {result} steps of the run (rounds times local steps)",
        "Lower it below {result}",
    ),
    Rule(
        ("learning.step_smoothness", "learning.bound"),
        lambda size, bound: bound == "one_step" and size > 0.0,
        "the bound for one step does not read it",
        "Give 0, or set learning.bound to local_steps",
    ),
    Rule(
        ("learning.step_smoothness", "learning.bound", "training.local_steps"),
        _is_no_step,
        "the bound for {2} local steps holds up to {result:g}",
        "Give the rate times the smoothness that a run logs",
    ),
    Rule(
        ("training.weight_decay", "training.client_optimizer", "training.decoder_optimizer"),
        lambda decay, *optimizers: decay and "adamw" not in optimizers,
        "neither clients nor decoder have adamw, which reads it",
        "Give 0, or set training.client_optimizer to adamw",
    ),
    Rule(
        ("training.proximal_weight", "training.control_variates"),
        lambda weight, variates: weight and variates,
        "control variates correct the drift already that it holds back",
        "Give 0, or set training.control_variates to False",
    ),
    Rule(
        ("training.activation_noise", "policy.name", "policy.modes"),
        lambda noise, *policy: noise and _may_have_clients(*policy),
        "{1} may train without a pipeline, whose activations it is for",
        "Give 0, or another policy",
    ),
    Rule(
        ("evaluation.by_cluster", "task.kind"),
        lambda by_cluster, kind: by_cluster and not find_task(kind).scores_samples,
        "the score of {1} is no mean over samples, which have shares by cluster",
        "Give False",
    ),
    *(
        Rule(
            (key, "model.adapter_rank"),
            lambda value, rank, usual=DEFAULTS[key]: value != usual and not rank,
            "no adapters are trained, which it is for",
            f"Give {DEFAULTS[key]!r}, or raise model.adapter_rank",
        )
        for key in ("model.adapter_freezes_a", "model.base_dtype")
    ),
    Rule(
        ("payload.trained_fraction", "model.adapter_rank"),
        lambda fraction, rank: rank and fraction < 1.0,
        "the adapters themselves say what is trained",
        "Give 1",
    ),
    Rule(
        ("payload.update_number_bits",),
        lambda bits: 0 < bits < 3,
        "the grid is so coarse that what rounding leaves grows without bound",
        "Give 3 or more, or 0 for updates as wide as parameters",
    ),
)

# Where rows of the embedding travel, what needs whole tables or tells of rows
_ROW_RULES = tuple(
    Rule(
        ("payload.embedding_rows", *keys),
        lambda rows, *values, is_broken=is_broken: rows == "touched" and is_broken(*values),
        problem,
        f"Give all, or {remedy}",
    )
    for keys, is_broken, problem, remedy in (
        (
            ("model.adapter_rank",),
            bool,
            "nothing of the embedding travels beside adapters",
            "set model.adapter_rank to 0",
        ),
        (
            ("secure_aggregation.enabled",),
            bool,
            "masked updates are summed as whole vectors",
            "set secure_aggregation.enabled to False",
        ),
        (
            ("training.control_variates",),
            bool,
            "control variates change in rows that a client does not read, too",
            "set training.control_variates to False",
        ),
        (
            ("training.client_moments",),
            lambda moments: moments == "average",
            "moments of rows that a client does not read decay, and are averaged",
            "set training.client_moments to keep or reset",
        ),
        (
            ("payload.update_number_bits", "payload.error_feedback"),
            lambda bits, feedback: bits and feedback,
            "residuals of rows that a party does not read are sent all the same",
            "set payload.error_feedback to False",
        ),
        (
            ("privacy.epsilon", "privacy.noise_multiplier"),
            lambda epsilon, noise: epsilon or noise,
            "the rows that a party asks for tell of its texts, without noise",
            "set privacy.epsilon and privacy.noise_multiplier to 0",
        ),
    )
)


def _check_mesh(backend: str, clusters: int, devices: int) -> None:
    """Raise an ``InputError`` where several hosts have too few devices for a mesh."""
    if backend == "sharded":
        with rename_error_keys({"mesh": "pipeline.backend"}):
            make_pipeline_mesh(clusters, devices)


# What can be priced, but not trained
_LEARNER_RULES = (
    Rule(("pipeline.backend", "network.clusters", "network.devices"), _check_mesh),
    Rule(
        ("payload.trained_fraction",),
        lambda fraction: fraction < 1.0,
        "a share prices a part of the model without saying which",
        "Give 1, and train adapters with model.adapter_rank",
    ),
    *(
        Rule(
            (key, "policy.name", "policy.modes"),
            lambda value, *policy, known=known: value != known and not _may_have_pipelines(*policy),
            "clients of policy {1} have no pipeline that reads it",
            f"Give {known}, or another policy",
        )
        for key, known in (
            ("pipeline.backend", "sequential"),
            ("training.erased_together", "micro_batch"),
            ("training.survivor_weight", "survival"),
        )
    ),
)


# --- Secure aggregation -------------------------------------------------------------------------


def _lacks_parties(
    clusters: int, devices: int, is_on: bool, policy: str, modes: Sequence[str]
) -> bool:
    """Whether a round of secure aggregation may have too few parties."""

    def parties(entry: PolicyEntry) -> int:
        by_device = entry.by_clients and not (entry.by_control_units or entry.averages_in_clusters)
        return clusters * (devices if by_device else 1)

    return is_on and min(map(parties, _may_be_run(policy, modes))) < LEAST_ANSWERS


_SECURE_RULES = (
    Rule(
        ("payload.update_number_bits", "secure_aggregation.enabled"),
        lambda bits, is_on: bits and is_on,
        "secure aggregation rounds updates itself",
        "Give 0 and choose secure_aggregation.ring_bits",
    ),
    *(
        Rule(
            (key, "secure_aggregation.enabled"),
            lambda value, is_on, refused=refused: is_on and value == refused,
            "secure aggregation sums updates and counts of rows alone",
            f"Give {others}, or set secure_aggregation.enabled to False",
        )
        for key, refused, others in (
            ("training.client_moments", "average", "keep or reset"),
            ("training.control_variates", True, "False"),
        )
    ),
    Rule(
        (
            "network.clusters",
            "network.devices",
            "secure_aggregation.enabled",
            "policy.name",
            "policy.modes",
        ),
        _lacks_parties,
        "the sum of a single party is its update",
        "Give 2 or more, or set secure_aggregation.enabled to False",
    ),
)


# --- Differential privacy -----------------------------------------------------------------------

_EPSILON, _NOISE = "privacy.epsilon", "privacy.noise_multiplier"


def _with_privacy(
    keys: tuple[str, ...], is_broken: Callable[..., object], problem: str, remedy: str
) -> Rule:
    """A rule where there is privacy."""
    return Rule(
        (*keys, _EPSILON, _NOISE),
        lambda *values: (values[-1] or values[-2]) and is_broken(*values[:-2]),
        problem,
        remedy,
    )


def _of_unit(unit: str, key: str, is_broken: Callable, problem: str, remedy: str) -> Rule:
    """A rule of one unit of privacy."""
    return _with_privacy(
        (key, "privacy.unit"),
        lambda value, given: given == unit and is_broken(value),
        problem,
        remedy,
    )


def _learns_words(kind: str, pretrained: str, corpus: str, train: str) -> bool:
    """Whether a task without a vocabulary on file learns one from the texts to protect."""
    if kind not in TASKS or pretrained or "task.vocabulary" in find_task(kind).reads:
        return False
    return corpus != "synthetic" or bool(train)


# What the noise would not cover, or what cannot be accounted for
_PRIVACY_RULES = (
    Rule(
        (_NOISE, _EPSILON),
        lambda noise, epsilon: noise and epsilon,
        "the noise follows from privacy.epsilon already",
        "Give one of them, and 0 for the other",
    ),
    *(
        Rule(
            (key,),
            lambda value: value and not accountant.is_installed(),
            "dp_accounting is not installed",
            f"pip install 'collapipe-jax[{accountant.EXTRA}]' brings it",
        )
        for key in (_EPSILON, _NOISE)
    ),
    _with_privacy(
        ("task.vocabulary", "task.kind", "model.pretrained"),
        lambda file, kind, pretrained: (
            kind in TASKS
            and not (file or pretrained)
            and "task.vocabulary" in find_task(kind).reads
        ),
        "it would be learnt from the training texts and reveal their words",
        "Give a vocab.txt of public text, or model.pretrained",
    ),
    _with_privacy(
        ("task.kind", "model.pretrained", "task.corpus", "task.train"),
        _learns_words,
        "its vocabulary is learnt from the training texts and reveals their words",
        "Give model.pretrained where the task reads it, or choose another kind",
    ),
    _with_privacy(
        ("training.embedding_rate_factor",),
        lambda factor: not factor,
        "rows averaged over the clients that read them tell who read them",
        "Give 1",
    ),
    _of_unit(
        "cluster",
        "secure_aggregation.enabled",
        bool,
        "the server clips the step of every cluster, which it then cannot see",
        "Give False",
    ),
    _of_unit(
        "cluster",
        "training.control_variates",
        bool,
        "control variates leave a cluster without clipping and noise",
        "Give False",
    ),
    _of_unit(
        "cluster",
        "training.client_moments",
        lambda moments: moments == "average",
        "moments leave a cluster without clipping and noise",
        "Give keep or reset",
    ),
    _of_unit(
        "cluster",
        "payload.update_number_bits",
        bool,
        "the server clips the step of every cluster, and what it cuts off is never sent",
        "Give 0",
    ),
    _with_privacy(
        ("privacy.unit", "policy.name", "policy.modes"),
        lambda unit, *policy: unit == "example" and _may_have_pipelines(*policy),
        "devices of {1} know gradients of micro-batches alone",
        "Give cluster, or a data-parallel policy such as control_unit_fl",
    ),
    _of_unit(
        "example",
        "training.length_buckets",
        lambda buckets: buckets > 1,
        "an example's length then decides which others are in its batch",
        "Give 1",
    ),
    _of_unit(
        "example",
        "task.packing",
        bool,
        "an example's length then decides which others share its row",
        "Give False",
    ),
)


# --- All of them --------------------------------------------------------------------------------


def common_rules() -> tuple[Rule, ...]:
    """What every configuration keeps."""
    return (
        *_SIZE_RULES,
        *_NETWORK_RULES,
        *_task_rules(),
        *_PIPELINE_RULES,
        *_TRAINING_RULES,
        *_SECURE_RULES,
        *_ROW_RULES,
    )


def training_rules() -> tuple[Rule, ...]:
    """What a configuration keeps that is trained."""
    return (*common_rules(), *_TRAINED_SIZE_RULES, *_LEARNER_RULES, *_PRIVACY_RULES)
