"""Download public corpora by name, each file checked against its digest.

    python -m experiments.fetch ner_bc5cdr vocab_bert --directory=corpora

Files go to a folder of the corpus's name below ``--directory``, or below what COLLAPIPE_DATA
names: where training looks for them. Licence and citation are shown first and have to be
accepted, or are with ``--yes``. What its publisher has replaced since is an error, unless
``--newer`` takes it. Names: mt_tatoeba_deu_eng, ner_bc5cdr, ner_wnut17, cls_clinc150,
cls_banking77, vocab_bert.
"""

import argparse
import dataclasses
import functools
import hashlib
import os
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

from collapipe_jax.command_line import make_parser, run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import partial_path
from collapipe_jax.tasks.corpora import DATA_VARIABLE

_REGISTRY = Path(__file__).with_name("corpora.toml")
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
    """All corpora by name, from ``corpora.toml``."""
    found = tomllib.loads(_REGISTRY.read_text(encoding="utf-8"))
    return {
        name: Corpus(files=tuple(_files(entry.pop("sources"))), **entry)
        for name, entry in found.items()
    }


def _files(sources: Sequence[dict]) -> Iterator[CorpusFile]:
    for source in sources:
        for name, path, sha256 in source["files"]:
            if "archive" in source:
                address = {"url": source["archive"], "member": path, "replaced_upstream": True}
            else:
                address = {"url": f"{source['repository']}/{path}"}
            yield CorpusFile(name=name, sha256=sha256, **address)


def main(argv: Sequence[str]) -> None:
    """Show the terms, ask, download what is missing."""
    options = _options(argv)
    console = Console()
    wanted = {name: _known(name) for name in options.names}
    directory = _directory(options.directory)
    for name, corpus in wanted.items():
        _show_terms(console, name, corpus)
    if not options.yes:
        _ask(console)
    for name, corpus in wanted.items():
        fetch(corpus, directory / name, console, newer=options.newer)
    if options.directory:
        console.print(f"for training: export {DATA_VARIABLE}={directory}", soft_wrap=True)


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
    if isinstance(error, requests.exceptions.HTTPError):
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


def _show_terms(console: Console, name: str, corpus: Corpus) -> None:
    console.print(f"[bold]{name}[/bold]: {corpus.title}")
    console.print(f"  licence: {corpus.licence}")
    console.print(f"  cite: {corpus.citation}")
    for url in dict.fromkeys(file.url for file in corpus.files):
        console.print(f"  from: {url}", soft_wrap=True)


def _ask(console: Console) -> None:
    try:
        answer = console.input("Download under these terms? \\[y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        problem = "the terms were not accepted, nothing was downloaded"
        raise InputError("consent", answer.strip(), problem, "Answer y, or pass --yes")


def _known(name: str) -> Corpus:
    if name not in corpora():
        raise InputError("NAME", name, "no such corpus", f"Use one of {', '.join(corpora())}")
    return corpora()[name]


def _directory(given: str) -> Path:
    directory = given or os.environ.get(DATA_VARIABLE, "")
    if not directory:
        problem = f"not given, and the environment variable {DATA_VARIABLE} is not set"
        remedy = f"Pass --directory=DIR and export {DATA_VARIABLE}=DIR for training"
        raise InputError("--directory", given, problem, remedy)
    return Path(directory).expanduser()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, directory=("", f"where to; else {DATA_VARIABLE}"))
    parser.add_argument("names", nargs="+", metavar="NAME", help="a corpus, see above")
    parser.add_argument("--yes", action="store_true", help="accept the terms without being asked")
    newer = "take today's version of what its publisher replaces in place"
    parser.add_argument("--newer", action="store_true", help=newer)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
