"""Plain text for language models: a text a line, or objects of JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collapipe_jax.errors import Known, collect
from collapipe_jax.tasks.corpora import Placed, TextFile, text_key, validation_size
from collapipe_jax.tasks.records import OBJECTS, Field, read_records, text_values
from collapipe_jax.tasks.sampling import seeded_generator


class TextSets(NamedTuple):
    """Texts of each set."""

    train: list[str]
    validation: list[str]
    test: list[str]


def read_texts(
    file: TextFile, text_column: str = "", key: str = "task.text_column"
) -> list[Placed[str]]:
    """Texts of a file with their places, white space at their ends and empty ones left out.

    Args:
      file: a ``.jsonl`` file of objects with a text each, or any other with a text a line.
      text_column: key of the text in objects; empty is ``text``.
      key: what errors call it.

    Raises:
      InputError: an unreadable file, an object without text, or no text at all.
    """
    if Path(file.name).suffix.lower() == OBJECTS:
        records = read_records(file, [Field(("text",), key, text_column)])
        placed = [(record.place, *text_values(file, record)) for record in records]
    else:
        placed = [(f"line {number}", line) for number, line in enumerate(file.lines(), start=1)]
    found = [(place, text.strip()) for place, text in placed if text.strip()]
    if not found:
        raise file.error("it holds no text", "Give a file with a text a line")
    return found


def read_sets(
    *,
    train: str,
    validation: str,
    test: str,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
    text_column: str = "",
) -> TextSets:
    """Texts of three files, each set in the order of its file.

    Args:
      train, test: names of files.
      validation: name of a file; empty draws texts from ``train``.
      seed: of the draws.
      samples: most texts to train on, drawn after the others; 0 takes all.
      validation_samples: texts drawn from ``train``; 0 is a tenth where ``validation`` is empty.
      text_column: as in ``read_texts``.

    Raises:
      InputError: a missing or broken file, or a number out of its range; or all of these.
    """
    named = {"train": train, "validation": validation, "test": test}
    files = {name: TextFile(f"task.{name}", path) for name, path in named.items() if path}
    placed = Known()
    with collect() as step:
        for name, file in files.items():
            with step():
                placed[name] = read_texts(file, text_column)
        known = {text_key(text) for _, text in placed["train"]}
        for name in ("validation", "test"):
            if name in files:
                with step():
                    files[name].warn_of_repeats(placed[name], known)
        size = validation_size(validation, validation_samples, len(placed["train"]))
    texts = {name: [text for _, text in placed.get(name, ())] for name in named}
    drawn, rest = _draw(texts["train"], size, seed)
    if 0 < samples < len(rest):
        rest, _ = _draw(rest, samples, seed)
    return TextSets(rest, texts["validation"] or drawn, texts["test"])


def _draw(texts: Sequence[str], size: int, seed: int) -> tuple[list[str], list[str]]:
    """A random draw and its complement, both in order."""
    drawn = set(seeded_generator(seed).permutation(len(texts))[:size].tolist())
    taken = [text for number, text in enumerate(texts) if number in drawn]
    return taken, [text for number, text in enumerate(texts) if number not in drawn]
