"""Public corpora: where each file comes from, its licence, and its checked download."""

import dataclasses
import functools
import hashlib
import io
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from urllib3.exceptions import ReadTimeoutError

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_bytes

_REGISTRY = Path(__file__).with_name("public_corpora.toml")
_TIMEOUT_S = 30.0
_LARGEST_BYTES = 1 << 30  # of a file; all are far smaller
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError)
# some publishers turn away clients that do not say who they are
_HEADERS = {"User-Agent": "collapipe-jax (corpus download)"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFile:
    """A file of a corpus."""

    name: str  # of the file in the folder of its corpus
    url: str  # what to download
    sha256: str  # digest of the file, in hexadecimal
    member: str = ""  # its name in the zip archive that ``url`` is; empty where ``url`` is the file
    replaced_upstream: bool = False  # the publisher puts newer versions under the same address


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus or vocabulary with its licence, in a folder of its own."""

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
      newer: take or keep any version of a file that the publisher replaces in place.

    Raises:
      InputError: without a connection, on one that breaks, on a server that refuses, or on a
        file with another digest, which is not kept.
      OSError: where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    downloads: dict[str, bytes] = {}
    for file in corpus.files:
        path = folder / file.name
        any_version = newer and file.replaced_upstream
        if path.is_file() and (any_version or _digest(path.read_bytes()) == file.sha256):
            console.print(f"already there: {path}", soft_wrap=True)
            continue
        if path.exists():
            console.print(f"not as published, fetched again: {path}", soft_wrap=True)
        what = f"its {file.member}" if file.member else "it"
        remedy = f"Try again, or download it in another way and save {what} as {path}"
        if file.url not in downloads:
            downloads[file.url] = _download(file.url, console, remedy)
        content = _member(file, downloads[file.url], remedy)
        digest = _digest(content)
        if digest != file.sha256 and not any_version:
            problem = f"{file.name} has sha256 {digest}, not {file.sha256}, and was not kept"
            if file.replaced_upstream:
                problem += "; the publisher replaces it by newer versions"
                remedy = "Take today's version with --newer; its scores do not compare with others"
            raise InputError("url", file.url, problem, remedy)
        write_bytes(path, content)
        console.print(f"fetched: {path} (sha256 {digest})", soft_wrap=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _download(url: str, console: Console, remedy: str) -> bytes:
    """The content at the address, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, TransferSpeedColumn(), console=console, transient=True)
    content = bytearray()
    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT_S, headers=_HEADERS) as answer, bar:
            answer.raise_for_status()
            told = answer.headers.get("content-length", "")
            size = int(told) if told.isdecimal() else None
            task = bar.add_task(url.rpartition("/")[2], total=size)
            for chunk in answer.iter_content(1 << 14):
                content += chunk
                if len(content) > _LARGEST_BYTES:
                    raise InputError("url", url, "it is larger than any corpus", remedy)
                bar.advance(task, len(chunk))
    except requests.exceptions.RequestException as error:
        raise InputError("url", url, _problem(error), remedy) from error
    return bytes(content)


def _problem(error: requests.exceptions.RequestException) -> str:
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server refuses it ({error.response.status_code})"
    if not isinstance(error, requests.exceptions.ConnectionError):
        return "the connection broke"
    # A transfer that stalls has this class too, with another error inside.
    if isinstance(error.args[0], ReadTimeoutError):
        return f"the connection broke: nothing came for {_TIMEOUT_S:g} s"
    return "the server cannot be reached; is there a connection to the internet?"


def _member(file: CorpusFile, content: bytes, remedy: str) -> bytes:
    """The file out of what was downloaded."""
    if not file.member:
        return content
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        if archive.getinfo(file.member).file_size > _LARGEST_BYTES:
            raise ValueError("too large")
        return archive.read(file.member)
    # encrypted, of an unknown method, or damaged in its compressed bytes
    except (*_DAMAGED, KeyError, RuntimeError, ValueError) as error:
        problem = f"not an archive that holds {file.member}"
        raise InputError("url", file.url, problem, remedy) from error
