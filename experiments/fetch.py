"""Download public corpora by name, each file checked against its digest.

    python -m experiments.fetch ner_bc5cdr vocab_bert --directory=corpora

Files go to a folder of the corpus's name below ``--directory``, or below what COLLAPIPE_DATA
names: where training looks for them. Licence and citation are shown first and have to be
accepted, or are with ``--yes``. What its publisher has replaced since is an error, unless
``--newer`` takes it. Names: mt_tatoeba_deu_eng, ner_bc5cdr, ner_wnut17, cls_clinc150,
cls_banking77, vocab_bert.
"""

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from urllib3.exceptions import ReadTimeoutError

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import partial_path
from collapipe_jax.tasks.corpora import DATA_VARIABLE
from experiments.corpora import CORPORA, Corpus, CorpusFile

_TIMEOUT_S = 30.0
# some publishers turn away clients that do not say who they are
_HEADERS = {"User-Agent": "collapipe-jax (corpus download)"}


def main(argv: Sequence[str]) -> None:
    """Show the terms, ask, download what is missing."""
    options = _options(argv)
    console = Console()
    corpora = {name: _known(name) for name in options.names}
    directory = _directory(options.directory)
    pooch.get_logger().setLevel("WARNING")  # what it would tell is said below
    for name, corpus in corpora.items():
        _show_terms(console, name, corpus)
    if not options.yes:
        _ask(console)
    for name, corpus in corpora.items():
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
      console: what is told goes there.
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
    return (newer and file.replaced_upstream) or pooch.file_hash(str(path)) == file.sha256


def _by_hand(file: CorpusFile, folder: Path) -> str:
    what = f"its {file.member}" if file.member else "it"
    return f"Try again, or download it in another way and save {what} as {folder / file.name}"


def _keep(fresh: Path, file: CorpusFile, folder: Path, console: Console, newer: bool) -> None:
    """Put a file in its place if it is what was published."""
    if file.member:
        fresh = _extract(fresh, file, folder)
    digest = pooch.file_hash(str(fresh))
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


def _transfer(url: str, path: Path, console: Console, remedy: str) -> None:
    """Bytes of the address to a path, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as progress:
        downloader = pooch.HTTPDownloader(
            progressbar=_Bar(progress, url.rpartition("/")[2]),
            chunk_size=1 << 14,
            timeout=_TIMEOUT_S,
            headers=_HEADERS,
        )
        try:
            downloader(url, str(path), None)
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


class _Bar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, progress: Progress, name: str):
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        """Bytes that will come; None where the server does not say."""
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, count: int) -> None:
        self._progress.update(self._task, total=count or None)

    def update(self, count: int) -> None:
        """That many bytes more have come."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Count again from 0, with the same total."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing more comes."""
        self._progress.stop_task(self._task)


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
    if name not in CORPORA:
        raise InputError("NAME", name, "no such corpus", f"Use one of {', '.join(CORPORA)}")
    return CORPORA[name]


def _directory(given: str) -> Path:
    directory = given or os.environ.get(DATA_VARIABLE, "")
    if not directory:
        problem = f"not given, and the environment variable {DATA_VARIABLE} is not set"
        remedy = f"Pass --directory=DIR and export {DATA_VARIABLE}=DIR for training"
        raise InputError("--directory", given, problem, remedy)
    return Path(directory).expanduser()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="a corpus, see above")
    parser.add_argument("--directory", default="", help=f"where to; else {DATA_VARIABLE}")
    parser.add_argument("--yes", action="store_true", help="accept the terms without being asked")
    parser.add_argument(
        "--newer",
        action="store_true",
        help="take today's version of what its publisher replaces in place",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
