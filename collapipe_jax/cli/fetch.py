"""Download public corpora by name, each file checked against its digest, and published models.

    collapipe fetch ner_bc5cdr vocab_bert --directory=corpora
    collapipe fetch OWNER/MODEL --directory=models

Corpora go to folders of their names below ``--directory``, or below what COLLAPIPE_DATA names:
where training looks for them. Licence and citation are shown first. Accept them when asked, or
with ``--yes``. A file that its publisher has replaced is an error; ``--newer`` accepts the new
one. Corpora: mt_tatoeba_deu_eng, ner_bc5cdr, ner_wnut17, cls_clinc150, cls_banking77, vocab_bert.

A name with a slash is a model of the hub of Hugging Face: BERT, Llama or Qwen. Its texts and
``.safetensors`` are taken, no programs. HF_ENDPOINT names another hub, and HF_TOKEN opens models
that are not for all.
"""

import dataclasses
import functools
import hashlib
import io
import os
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from urllib3.exceptions import ReadTimeoutError

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_bytes
from collapipe_jax.learning.models.published import fetch_model, model_terms
from collapipe_jax.learning.tasks.corpora import DATA_VARIABLE

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


def main(argv: Sequence[str]) -> None:
    """Show the terms, ask, download what is missing."""
    parser = make_parser(__doc__, directory=("", f"where to; else {DATA_VARIABLE}"))
    parser.add_argument("names", nargs="+", metavar="NAME", help="a corpus or a model, see above")
    parser.add_argument("--yes", action="store_true", help="accept the terms without being asked")
    newer = "take today's version of what its publisher replaces in place"
    parser.add_argument("--newer", action="store_true", help=newer)
    options, console = parser.parse_args(argv), Console()
    models = [name for name in options.names if "/" in name]
    wanted = {name: _corpus(name) for name in options.names if name not in models}
    directory = _directory(options.directory)
    for name, corpus in wanted.items():
        console.print(f"[bold]{name}[/bold]: {corpus.title}")
        console.print(f"  licence: {corpus.licence}")
        console.print(f"  cite: {corpus.citation}")
        for url in dict.fromkeys(file.url for file in corpus.files):
            console.print(f"  from: {url}", soft_wrap=True)
    for name in models:
        console.print(f"[bold]{name}[/bold]: a model\n  licence: {model_terms(name)}")
    if not options.yes:
        _ask(console)
    for name, corpus in wanted.items():
        fetch(corpus, directory / name, console, newer=options.newer)
    if wanted and options.directory:
        console.print(f"for training: export {DATA_VARIABLE}={directory}", soft_wrap=True)
    for name in models:
        folder = directory / name.rpartition("/")[2]
        fetch_model(name, folder)
        console.print(f"fetched; for training: collapipe train --model={folder}", soft_wrap=True)


def _corpus(name: str) -> Corpus:
    if name not in corpora():
        remedy = f"Use one of {', '.join(corpora())}, or OWNER/MODEL"
        raise InputError("NAME", name, "no such corpus", remedy)
    return corpora()[name]


def _ask(console: Console) -> None:
    try:
        answer = console.input("Download under these terms? \\[y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        problem = "the terms were not accepted, nothing was downloaded"
        raise InputError("consent", answer.strip(), problem, "Answer y, or pass --yes")


def _directory(given: str) -> Path:
    directory = given or os.environ.get(DATA_VARIABLE, "")
    if not directory:
        problem = f"not given, and the environment variable {DATA_VARIABLE} is not set"
        remedy = f"Pass --directory=DIR and export {DATA_VARIABLE}=DIR for training"
        raise InputError("--directory", given, problem, remedy)
    return Path(directory).expanduser()
