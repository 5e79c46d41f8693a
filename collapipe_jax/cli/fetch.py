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

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.published import fetch_model, model_terms
from collapipe_jax.learning.tasks.corpora import DATA_VARIABLE
from collapipe_jax.learning.tasks.public_corpora import Corpus, corpora, fetch


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
