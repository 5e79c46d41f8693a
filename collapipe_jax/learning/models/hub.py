"""Published models from a hub, without their programs and pickles."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.published import read_published_sizes
from collapipe_jax.learning.models.tensor_files import CONFIG, WEIGHTS

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
    # `*` may also stand for a folder: further layouts and numbers of other formats lie there.
    _snapshot(name, folder, _TEXTS)
    if not (folder / CONFIG).exists():
        raise InputError("NAME", name, f"it has no {CONFIG}", "Name a model, no tokenizer or data")
    read_published_sizes(folder)
    _snapshot(name, folder, ("model*.safetensors",))
    if not (folder / WEIGHTS).exists() and not any(folder.glob("model-*.safetensors")):
        problem = f"it has no {WEIGHTS}, whole or in shards"
        raise InputError("NAME", name, problem, "Take a model in that layout: others run programs")


def _snapshot(name: str, folder: Path, patterns: tuple[str, ...]) -> None:
    from huggingface_hub import snapshot_download

    with _reported(name):
        snapshot_download(
            name,
            local_dir=folder,
            endpoint=_endpoint(),
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
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
