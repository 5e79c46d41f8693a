"""Fine-tuning of a published model on a file: all keys follow from the two.

Rates, passes and batches are usual for fine-tuning. Memory and budgets keep the proportions of
``default.py``: a board holds as large a part of the blocks, and a budget is as many times the
energy that a static pipeline spends.
"""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.batch_axis import pick
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError, InputWarning, collect, rename_error_keys
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.cost.computing import (
    block_bytes,
    device_memory_bytes,
    embedding_memory_bytes,
)
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.network.devices import DEVICE_PROFILES
from collapipe_jax.edge.queues import device_budget_floor_j
from collapipe_jax.edge.system import SystemParams, sample_system
from collapipe_jax.learning.models.config import BertConfig, CausalConfig
from collapipe_jax.learning.models.published import read_published_sizes
from collapipe_jax.learning.models.tensor_files import CONFIG, read_json
from collapipe_jax.learning.tasks.classification import (
    LABEL_COLUMNS,
    TEXT_COLUMN,
    read_labelled_text,
)
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.instructions import Exchange
from collapipe_jax.learning.tasks.packing import first_fit_decreasing
from collapipe_jax.learning.tasks.plain_text import exchange_columns
from collapipe_jax.learning.tasks.records import SUFFIXES, record_columns
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.subwords import ByteTokenizer, WordPiece
from collapipe_jax.learning.tasks.tagging import is_tagged, read_tagged_text
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.checks import check_values, sections_of
from collapipe_jax.runs.config.files import read_values
from collapipe_jax.runs.config.system import build_system_params, system_key

_KINDS = {
    BertConfig: ("classification", "tagging", "masked_lm"),
    CausalConfig: ("causal_lm",),
}
"""Tasks of a model by the type of its sizes."""

_PASSES, _CAUSAL_PASSES = 6, 3
_LENGTH_BUCKETS = 3  # most texts are far shorter than the longest
_LONGEST, _LONGEST_EXCHANGE = 128, 512  # tokens of a row
_LARGEST_BATCH, _LARGEST_CAUSAL_BATCH = 32, 8  # scores of a large vocabulary fill the memory
_NETWORKS = 3
_MICRO_BATCHES = 8  # of the static pipeline
_MARGIN = 1.25  # of a budget of devices over its floor, which losses and fading raise

# Learning rates of the parts: published blocks take smaller steps the wider they are, a fresh head
# larger ones, and adapters, which start at zero, the largest (Hu et al. 2106.09685: 2e-4 to 1e-3).
_HEAD_RATE, _ADAPTER_RATE, _CAUSAL_RATE = 1e-3, 1e-3, 1e-4
# A BERT of width 384 forgets all at 6e-4 where labels are rare, and learns them at 2e-4.
_BERT_RATES = ((512, 2e-4), (1024, 1e-4), (math.inf, 3e-5))  # below a width
_BERT_ADAPTER_RATE = 2e-3


_PACKING_KEY = "task.packing"


class FineTuning(NamedTuple):
    """A run of fine-tuning."""

    config: str  # name of the configuration that it starts from
    values: dict[str, Any]  # of the keys that follow from model and file
    summary: str  # of these, in one line


def fine_tuning(
    model: str, data: str, test: str = "", lora: int = 0, given: dict[str, Any] | None = None
) -> FineTuning:
    """Keys to train a published model on a file.

    Args:
      model: folder of a BERT, a Llama or a Qwen in the layout of Hugging Face.
      data: file with texts, labelled texts or tagged sentences.
      test: file of the same form; without one validation has the final scores.
      lora: rank of adapters; 0 trains everything.
      given: values by key that a user sets, and that others follow.

    Raises:
      InputError: a folder or a file that cannot be read, or whose forms do not fit.
    """
    with warnings.catch_warnings():
        # The run reads the file again, and warns then.
        warnings.simplefilter("ignore", InputWarning)
        return _fine_tuning(model, data, test, lora, dict(given or {}))


def _fine_tuning(model: str, data: str, test: str, lora: int, given: dict[str, Any]) -> FineTuning:
    with rename_error_keys({"file": "--model"}):
        sizes = read_published_sizes(model)
    kinds = _KINDS[type(sizes)]
    given_task = _check_given(kinds[0], sizes, {"model.pretrained": model, **given})
    files = [TextFile("--data", data, given_task["skip_broken"]), TextFile("--test", test)]
    if (kind := given.get("task.kind")) is None:
        kind = _kind_of(sizes, [file for file in files if file.name], given_task)
    elif kind not in kinds:
        problem, remedy = "not of such a model", f"Give one of {', '.join(kinds)}"
        raise InputError("task.kind", kind, problem, remedy)
    # Its sizes follow where the configuration is read.
    values = {"model.pretrained": model, "task.train": data, "task.test": test}
    values |= {"task.corpus": "", "task.validation": "", "model.adapter_rank": lora}
    if kind == "masked_lm" and test:
        raise InputError("--test", test, "masked_lm has no test set", "Leave it out")
    with rename_error_keys({"task.train": "--data", "task.test": "--test"}):
        values |= _from_texts(kind, sizes, values, given)
    is_causal = isinstance(sizes, CausalConfig)
    client_rate, head_rate = _rates(sizes, lora)
    values |= {
        "training.client_learning_rate": client_rate,
        "training.decoder_learning_rate": head_rate,
    }
    if is_causal:
        # Of many blocks the inputs alone are kept: activations of all would not fit a laptop.
        values |= {"model.label_smoothing": 0.0, "model.rematerialise": True}
    else:
        values |= {"training.length_buckets": _LENGTH_BUCKETS}
    values |= _in_proportion(kind, {**values, **given})
    values |= given
    return FineTuning(kind, values, _summary(kind, values))


def _rates(sizes: BertConfig | CausalConfig, lora: int) -> tuple[float, float]:
    """Learning rates of the blocks, or of their adapters, and of the head."""
    if isinstance(sizes, CausalConfig):  # whose head is published, too
        return (_ADAPTER_RATE if lora else _CAUSAL_RATE), _CAUSAL_RATE
    if lora:
        return _BERT_ADAPTER_RATE, _BERT_ADAPTER_RATE
    return next(rate for width, rate in _BERT_RATES if sizes.width < width), _HEAD_RATE


def _check_given(
    kind: str, sizes: BertConfig | CausalConfig, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The section ``task`` with what a user gives; all that is wrong by itself is refused first."""
    # The length of a row follows from the texts.
    config, unknown = read_values(kind, {"task.source_length": sizes.positions, **given})
    with collect() as step:
        fine, _ = check_values(config, step, unknown)
        values, whole = sections_of(fine)
        with step():
            find_task(kind).check_pretrained(whole)
    return values["task"]


def _kind_of(
    sizes: BertConfig | CausalConfig, files: Sequence[TextFile], task: Mapping[str, Any]
) -> str:
    """The task of a model and of its files, by the forms that the first can be read in."""
    columns = {name: task[name] for name in ("text_column", "label_column")}
    if isinstance(sizes, CausalConfig):
        with collect() as step:
            for file in files:
                with step():
                    _refuse_labels(file, **columns)
        return "causal_lm"
    file, readers = files[0], dict[str, Any]()
    readers["classification"] = functools.partial(read_labelled_text, **columns)
    readers["tagging"] = read_tagged_text
    is_table = file.suffix in (*SUFFIXES, ".json")
    if not is_table:
        readers.pop("classification")
    elif file.suffix not in (".jsonl", ".parquet", ".tsv"):
        readers.pop("tagging")
    errors = []
    for kind, read in readers.items():
        try:
            read(file)
        except InputError as error:
            errors.append(error)
        else:
            return kind
    if "tagging" in readers and is_tagged(file):
        raise errors[-1]
    if not is_table:
        return "masked_lm"  # lines of text
    if not any(columns.values()) and (asked := exchange_columns(file)):
        problem = f"it has prompts with answers ({', '.join(asked)}), which a BERT does not learn"
        raise file.error(problem, "Take a Llama or a Qwen, or give texts with labels")
    raise errors[0]


def _refuse_labels(file: TextFile, *, text_column: str, label_column: str) -> None:
    """Refuse tags and labels, which a language model would drop without a word."""
    if is_tagged(file):
        problem = "it has words with tags, which a language model does not learn"
        raise file.error(problem, "Take a BERT, or give a file with texts alone")
    named = [label_column] if label_column else LABEL_COLUMNS
    columns = record_columns(file) if file.suffix in SUFFIXES else []
    has_labels = TEXT_COLUMN in columns and not set(columns).isdisjoint(named)
    if not text_column and (has_labels or file.suffix == ".json"):
        problem = "it has texts with labels, which a language model does not learn"
        remedy = "Take a BERT, or set task.kind to causal_lm to learn the texts alone"
        raise file.error(problem, remedy)


def _from_texts(
    kind: str,
    sizes: BertConfig | CausalConfig,
    values: dict[str, Any],
    given: dict[str, Any],
) -> dict[str, Any]:
    """Keys that follow from the training texts: their length and the number of their rows."""
    config, _ = read_values(kind, {**values, **given})
    model = values["model.pretrained"]
    corpus = find_task(kind).read_corpus(config.to_dict())
    if isinstance(sizes, CausalConfig):
        document = read_json(Path(model) / CONFIG, "Take the original file")
        lengths = ByteTokenizer.from_folder(Path(model), document).lengths(corpus.train)
    else:
        texts = [_text(entry) for entry in corpus.train]
        vocabulary = str(Path(model) / "vocab.txt")
        pieces = WordPiece.from_file(vocabulary, config.task.lowercase).pieces_of(texts)
        lengths = [len(row) + 2 for row in pieces]  # with both ends
    # All but the longest two in a hundred fit a row; an answer is not cut to save time.
    longest = int(np.quantile(lengths, 0.98, method="higher"))
    most = _LONGEST_EXCHANGE if isinstance(corpus.train[0], Exchange) else _LONGEST
    length = min(8 * math.ceil(longest / 8), most, sizes.positions)
    rows, is_exchange = len(lengths), isinstance(corpus.train[0], Exchange)
    is_packed = config.task.packing if _PACKING_KEY in given else is_exchange
    clusters, steps = config.network.clusters, config.training.local_steps
    batch = _LARGEST_CAUSAL_BATCH if isinstance(sizes, CausalConfig) else _LARGEST_BATCH
    if is_packed:  # each cluster may have one more, half empty
        room = length + 1
        rows = int(first_fit_decreasing(np.minimum(lengths, room), room).max()) + 1
        # A step has about as many texts as without packing: fewer steps would learn less.
        batch = 1 << max(0, round(math.log2(batch * rows / len(lengths))))
    while batch > 1 and batch * clusters * steps > rows:
        batch //= 2
    if "training.batch" in given:
        batch = config.training.batch
    passes = _CAUSAL_PASSES if isinstance(sizes, CausalConfig) else _PASSES
    rounds = max(10, math.ceil(passes * rows / (batch * clusters * steps)))
    if "training.rounds" in given:
        rounds = config.training.rounds
    every = max(1, rounds // 10)
    keys: dict[str, Any] = {
        "task.source_length": length,
        "training.batch": batch,
        "training.rounds": rounds,
        "training.warmup_steps": max(1, rounds * steps // 10),
        "evaluation.every_rounds": every,
        "checkpoint_every_rounds": every,
    }
    if is_exchange:
        keys[_PACKING_KEY] = is_packed
    if hasattr(corpus, "labels"):
        keys["task.labels"] = len(corpus.labels)
    return keys


def _text(entry: Any) -> str:
    """The text of a labelled text, of a tagged sentence, or of a text."""
    if isinstance(entry, str):
        return entry
    return entry.text if hasattr(entry, "text") else " ".join(entry.tokens)


def _in_proportion(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Share of memory and budgets, with the proportions of the default configuration."""
    usual, (config, _) = default.get_config(), read_values(kind, values)
    reference, params = build_system_params(usual), build_system_params(config)
    share = _encoder_bytes(params) / _encoder_bytes(reference) * usual.devices.memory_share
    share = min(1.0, _rounded_up(max(share, _least_share(params))))
    params = params.replace(devices=params.devices.replace(memory_share=jnp.asarray(share)))
    seeds = np.arange(_NETWORKS) + seed_of(config, "network")
    spent, usually = _round_energy(params, seeds), _round_energy(reference, seeds)
    keys = {"devices.memory_share": share}
    if spent.devices_j:  # where no cluster holds the model, nothing is spent; that is refused later
        unit, device = spent.units_j / usually.units_j, spent.devices_j / usually.devices_j
        device_j = max(device * usual.control.device_budget_j, _MARGIN * spent.device_floor_j)
        unit_j = _rounded_up(unit * usual.control.control_unit_budget_j)
        keys |= {"control.control_unit_budget_j": unit_j}
        keys |= {"control.device_budget_j": _rounded_up(device_j)}
    return keys


def _encoder_bytes(params: SystemParams) -> float:
    """Memory of all blocks of a cluster together."""
    work = params.workload
    return float(np.asarray(work.cluster_blocks * block_bytes(work, work.batch)))


def _least_share(params: SystemParams) -> float:
    """The least share of memory by which a control unit holds the embedding, a device one block."""
    work, devices = params.workload, params.devices
    one_block = device_memory_bytes(work, jnp.array([[1]]), jnp.max(work.micro_batch_choices)[None])
    embedding = embedding_memory_bytes(work, jnp.array([[1]]))
    unit_bytes = DEVICE_PROFILES[devices.control_unit].memory_bytes
    device_bytes = min(DEVICE_PROFILES[kind].memory_bytes for kind in devices.kinds)
    return max(float(embedding[0]) / unit_bytes, float(one_block[0, 0]) / device_bytes)


class _RoundEnergy(NamedTuple):
    """Energy of a round of the static pipeline, and the least budget of devices."""

    # means over nodes and networks
    units_j: float
    devices_j: float
    device_floor_j: float  # of the worst cluster


def _round_energy(params: SystemParams, seeds: np.ndarray) -> _RoundEnergy:
    """The energy of the networks of some seeds at mean gains."""
    problems, energy_j = _static_rounds(seeds, params)
    networks = (pick(problems, number) for number in range(len(seeds)))
    floor_j = max(device_budget_floor_j(problem).max() for problem in networks)
    return _RoundEnergy(
        float(energy_j[..., 0].mean()), float(energy_j[..., 1:].mean()), float(floor_j)
    )


@quick_jit
@functools.partial(jax.vmap, in_axes=(0, None))
def _static_rounds(seed: jax.Array, params: SystemParams) -> tuple[RoundProblem, jax.Array]:
    """A network at mean gains, and the energy of its nodes by the static pipeline."""
    problem = sample_system(system_key(seed), params, seed).mean_problem
    once = problem.replace(radio=problem.radio.replace(retransmissions="free"))
    return problem, evaluate(once, static_pipeline(once, _MICRO_BATCHES)).energy_j


def _rounded_up(value: float) -> float:
    """A number with three digits, no smaller."""
    factor = math.pow(10.0, 2 - math.floor(math.log10(value)))
    return float(f"{math.ceil(value * factor) / factor:.3g}")


def _summary(kind: str, values: dict[str, Any]) -> str:
    shown = {
        "task.source_length": "rows of {} tokens",
        _PACKING_KEY: "packing {}",
        "training.batch": "batch {}",
        "training.rounds": "{} rounds",
        "training.client_learning_rate": "rate {}",
        "training.decoder_learning_rate": "and {} of the head",
        "devices.memory_share": "memory share {}",
        "control.control_unit_budget_j": "budgets {} J",
        "control.device_budget_j": "and {} J",
    }
    words = [
        text.format(f"{value:g}" if isinstance(value := values[key], float) else value)
        for key, text in shown.items()
        if key in values
    ]
    if rank := values["model.adapter_rank"]:
        words.insert(0, f"LoRA of rank {rank}")
    return f"{kind}: " + ", ".join(words) + "; --config.KEY=VALUE changes any"
