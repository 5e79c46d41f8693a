"""Download public corpora by name, each file checked against its digest.

    collapipe fetch ner_bc5cdr vocab_bert --directory=corpora

Files go to a folder of the corpus's name below ``--directory``, or below what COLLAPIPE_DATA
names: where training looks for them. Licence and citation are shown first. Accept them
when asked, or with ``--yes``. A file that its publisher has replaced is an error; ``--newer``
accepts the new one. Names: mt_tatoeba_deu_eng, ner_bc5cdr, ner_wnut17, cls_clinc150,
cls_banking77, vocab_bert.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.corpora import DATA_VARIABLE
from collapipe_jax.learning.tasks.public_corpora import corpora, fetch


def main(argv: Sequence[str]) -> None:
    """Show the terms, ask, download what is missing."""
    parser = make_parser(__doc__, directory=("", f"where to; else {DATA_VARIABLE}"))
    parser.add_argument("names", nargs="+", metavar="NAME", help="a corpus, see above")
    parser.add_argument("--yes", action="store_true", help="accept the terms without being asked")
    newer = "take today's version of what its publisher replaces in place"
    parser.add_argument("--newer", action="store_true", help=newer)
    options, console = parser.parse_args(argv), Console()
    for name in options.names:
        if name not in corpora():
            raise InputError("NAME", name, "no such corpus", f"Use one of {', '.join(corpora())}")
    wanted = {name: corpora()[name] for name in options.names}
    directory = _directory(options.directory)
    for name, corpus in wanted.items():
        console.print(f"[bold]{name}[/bold]: {corpus.title}")
        console.print(f"  licence: {corpus.licence}")
        console.print(f"  cite: {corpus.citation}")
        for url in dict.fromkeys(file.url for file in corpus.files):
            console.print(f"  from: {url}", soft_wrap=True)
    if not options.yes:
        _ask(console)
    for name, corpus in wanted.items():
        fetch(corpus, directory / name, console, newer=options.newer)
    if options.directory:
        console.print(f"for training: export {DATA_VARIABLE}={directory}", soft_wrap=True)


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
