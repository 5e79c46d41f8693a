"""Public corpora: where each file comes from, its licence, and its checked download."""

import dataclasses
import functools
import hashlib
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from urllib3.exceptions import ReadTimeoutError

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import partial_path

_REGISTRY = Path(__file__).with_name("public_corpora.toml")
_TIMEOUT_S = 30.0
# some publishers turn away clients that do not say who they are
_HEADERS = {"User-Agent": "collapipe-jax (corpus download)"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFile:
    """A file of a corpus.

    Attributes:
      name: of the file in the folder of its corpus.
      url: what to download.
      sha256: digest of the file, in hexadecimal.
      member: its name in the zip archive that ``url`` is; empty where ``url`` is the file.
      replaced_upstream: the publisher puts newer versions under the same address.
    """

    name: str
    url: str
    sha256: str
    member: str = ""
    replaced_upstream: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus or vocabulary, in a folder of its own.

    Attributes:
      title: what it is.
      licence: under which terms it may be used.
      citation: whom to name.
      files: all that belongs to it, its licence included.
    """

    title: str
    licence: str
    citation: str
    files: tuple[CorpusFile, ...]


@functools.cache
def corpora() -> dict[str, Corpus]:
    """All corpora by name, from ``public_corpora.toml``."""
    found = tomllib.loads(_REGISTRY.read_text(encoding="utf-8"))
    return {
        name: Corpus(files=tuple(_files(entry.pop("sources"))), **entry)
        for name, entry in found.items()
    }


def _files(sources: Sequence[dict]) -> Iterator[CorpusFile]:
    for source in sources:
        for name, path, sha256 in source["files"]:
            known = functools.partial(CorpusFile, name=name, sha256=sha256)
            if "archive" in source:
                yield known(url=source["archive"], member=path, replaced_upstream=True)
            else:
                yield known(url=f"{source['repository']}/{path}")


def fetch(corpus: Corpus, folder: Path, console: Console, newer: bool = False) -> None:
    """Download the files of a corpus that are not there as published.

    A file appears in the folder whole and checked, or not at all; one that was there stays
    until then.

    Args:
      corpus: what to download.
      folder: where to; made where missing.
      console: for messages and progress.
      newer: take what is served today where the publisher replaces files in place, and keep
        what is there of these.

    Raises:
      InputError: without a connection, on one that breaks, on a server that refuses, or on a
        file with another digest, which is not kept.
      OSError: where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, list[CorpusFile]] = {}
    for file in corpus.files:
        path = folder / file.name
        if _is_good(path, file, newer):
            console.print(f"already there: {path}", soft_wrap=True)
            continue
        if path.exists():
            console.print(f"not as published, fetched again: {path}", soft_wrap=True)
        wanted.setdefault(file.url, []).append(file)
    for url, files in wanted.items():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            fresh = Path(scratch) / "download"
            _transfer(url, fresh, console, _by_hand(files[0], folder))
            for file in files:
                _keep(fresh, file, folder, console, newer)


def _is_good(path: Path, file: CorpusFile, newer: bool) -> bool:
    if not path.is_file():
        return False
    return (newer and file.replaced_upstream) or _digest(path) == file.sha256


def _by_hand(file: CorpusFile, folder: Path) -> str:
    what = f"its {file.member}" if file.member else "it"
    return f"Try again, or download it in another way and save {what} as {folder / file.name}"


def _keep(fresh: Path, file: CorpusFile, folder: Path, console: Console, newer: bool) -> None:
    """Put a file in its place if it is what was published."""
    if file.member:
        fresh = _extract(fresh, file, folder)
    digest = _digest(fresh)
    if digest != file.sha256 and not (newer and file.replaced_upstream):
        raise _other_digest(file, digest, folder)
    path = folder / file.name
    arriving = partial_path(path)  # a copy beside it has the usual permissions
    try:
        shutil.copyfile(fresh, arriving)
        arriving.replace(path)
    finally:
        arriving.unlink(missing_ok=True)
    console.print(f"fetched: {path} (sha256 {digest})", soft_wrap=True)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _transfer(url: str, path: Path, console: Console, remedy: str) -> None:
    """Bytes of the address to a path, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, TransferSpeedColumn(), console=console, transient=True)
    try:
        with (
            requests.get(url, stream=True, timeout=_TIMEOUT_S, headers=_HEADERS) as answer,
            path.open("wb") as stream,
            bar,
        ):
            answer.raise_for_status()
            size = int(answer.headers.get("content-length", 0)) or None
            task = bar.add_task(url.rpartition("/")[2], total=size)
            for chunk in answer.iter_content(1 << 14):
                stream.write(chunk)
                bar.advance(task, len(chunk))
    except requests.exceptions.RequestException as error:
        raise InputError("url", url, _problem(error), remedy) from error


def _problem(error: requests.exceptions.RequestException) -> str:
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server refuses it ({error.response.status_code})"
    if not isinstance(error, requests.exceptions.ConnectionError):
        return "the connection broke"
    # A transfer that stalls has this class too, with another error inside.
    if isinstance(error.args[0], ReadTimeoutError):
        return f"the connection broke: nothing came for {_TIMEOUT_S:g} s"
    return "the server cannot be reached; is there a connection to the internet?"


def _extract(archive: Path, file: CorpusFile, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as content:
            return Path(content.extract(file.member, archive.parent / "content"))
    except (zipfile.BadZipFile, KeyError) as error:
        problem = f"not an archive that holds {file.member}"
        raise InputError("url", file.url, problem, _by_hand(file, folder)) from error


def _other_digest(file: CorpusFile, digest: str, folder: Path) -> InputError:
    remedy = _by_hand(file, folder)
    problem = f"{file.name} has sha256 {digest}, not {file.sha256}, and was not kept"
    if file.replaced_upstream:
        problem += "; the publisher replaces it by newer versions"
        remedy = "Take today's version with --newer; its scores do not compare with others"
    return InputError("url", file.url, problem, remedy)
