"""Published models: their download from a hub, and the sizes that their folders state."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import read_object
from collapipe_jax.learning.models.bert_files import BERT_TYPES, read_bert_config
from collapipe_jax.learning.models.causal_files import read_causal_config
from collapipe_jax.learning.models.config import (
    NGRAM_SIZES,
    PUBLISHED_SIZES,
    BertConfig,
    CausalConfig,
)
from collapipe_jax.learning.models.tensor_files import CONFIG, read_json, tensor_files

FURTHER_SIZES = ("key_value_heads", "head_size", "query_bias", "query_key_norm")
"""Sizes of a decoder-only model that other models have not."""


def read_published_sizes(folder: str | Path) -> BertConfig | CausalConfig:
    """Sizes in ``config.json`` of a BERT, a Llama or a Qwen.

    Raises:
      InputError: a missing or unreadable file, or a model of another kind.
    """
    path, remedy = Path(folder) / CONFIG, "Name the folder of a BERT, Llama or Qwen"
    if not os.path.isfile(path):  # is_file() raises where a name is too long
        problem = f"the folder has no {CONFIG}" if os.path.isdir(folder) else "no such folder"
        raise InputError("file", str(folder), problem, remedy)
    document = read_json(path, remedy)
    is_bert = document.get("model_type") in BERT_TYPES
    return (read_bert_config if is_bert else read_causal_config)(path)[0]


def published_keys(folder: str | Path) -> dict[str, Any]:
    """Values of the configuration that follow from a model's folder, as ``"section.key"``.

    Raises:
      InputError: as :func:`read_published_sizes`.
    """
    sizes = read_published_sizes(folder)
    further = NGRAM_SIZES if isinstance(sizes, BertConfig) else FURTHER_SIZES
    rates = "dropout_rate", "attention_dropout_rate"
    keys: dict[str, Any] = {
        f"model.{name}": getattr(sizes, name)
        for name in (*PUBLISHED_SIZES, *further, *rates)
        if name != "vocabulary_size"
    }
    keys["task.vocabulary_size"] = sizes.vocabulary_size
    settings = read_object(Path(folder) / "tokenizer_config.json") or {}
    if isinstance(sizes, BertConfig) and isinstance(settings.get("do_lower_case"), bool):
        keys["task.lowercase"] = settings["do_lower_case"]
    return keys


# Download, without programs and pickles. The library is imported where it is used: few commands
# need it.

_TEXTS = ("*.json", "*.txt", "*.jinja", "README.md", "LICENSE*")
"""Sizes, vocabulary, template of chats and terms; a hub's folder may hold much besides."""


def model_terms(name: str) -> str:
    """The licence that a hub's page of a model states.

    Args:
      name: owner and model, as ``OWNER/MODEL``.

    Raises:
      InputError: if there is no such model, or no connection.
    """
    from huggingface_hub import HfApi

    with _reported(name):
        card = HfApi(endpoint=_endpoint()).model_info(name).card_data
    return str(card.get("license") or "not stated") if card else "not stated"


def fetch_model(name: str, folder: Path) -> None:
    """Download a model that can be trained here.

    Its texts come first, so that a model of another kind costs no weights. Of several layouts
    the tensors of ``model.safetensors``, whole or in shards, are taken. A download that was
    stopped goes on where it was; files that are there and unchanged stay.

    Args:
      name: owner and model, as ``OWNER/MODEL``.
      folder: where to.

    Raises:
      InputError: as :func:`model_terms`; if it is no model that this package reads, or has no
        such tensors.
    """
    _snapshot(name, folder, _TEXTS)
    read_published_sizes(folder)
    _snapshot(name, folder, ("model*.safetensors",))
    tensor_files(folder)


def _snapshot(name: str, folder: Path, patterns: tuple[str, ...]) -> None:
    from huggingface_hub import snapshot_download

    with _reported(name):
        snapshot_download(
            name,
            local_dir=folder,
            endpoint=_endpoint(),
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],  # other layouts lie in folders of their own
        )


def _endpoint() -> str | None:
    """Address of the hub, where it is not the library's default."""
    return os.environ.get("HF_ENDPOINT")


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    """Report what the hub's library raises as wrong input."""
    from huggingface_hub import errors

    known: dict[type[Exception], tuple[str, str]] = {
        errors.HFValidationError: ("no name of a model", "Write OWNER/MODEL"),
        errors.GatedRepoError: ("its owner asks for consent", "Give it there, and set HF_TOKEN"),
        errors.RepositoryNotFoundError: (
            "no such model, or not for all",
            "Correct it, or set HF_TOKEN",
        ),
        errors.HfHubHTTPError: ("the hub refuses it", "Try again later"),
        # Of a connection, by whatever library makes it, or of a full disk.
        Exception: ("the download broke", "Run it again: it goes on where it was"),
    }
    try:
        yield
    except Exception as error:
        problem, remedy = next(text for kind, text in known.items() if isinstance(error, kind))
        reason = str(error).strip().partition("\n")[0]
        raise InputError("NAME", name, f"{problem} ({reason})", remedy) from error
