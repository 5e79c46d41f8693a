"""Labels that are numbers, and the names of these numbers as Hugging Face datasets keep them."""

import functools
from typing import Any

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.io.strict_json import loads
from collapipe_jax.learning.tasks.corpora import TextFile

FEATURES = "dataset_info.json"
"""File beside a corpus whose ``features`` name the numbers of its columns."""


class LabelNames:
    """Text of the labels in a file.

    Args:
      file: the corpus.
      features: description of its columns, as in ``dataset_info.json`` of the library datasets;
        None looks for this file beside the corpus.
    """

    def __init__(self, file: TextFile, features: Any = None):
        self._file, self._given = file, features
        self.names: list[str] | None = None  # for all columns, where the file itself has some

    def text(self, place: str, column: str, value: Any) -> Any:
        """A label, or a list of them, with text in the place of numbers.

        A number is its name, or its digits where nothing names it, as in a table. What is
        neither text nor a whole number stays as it is.

        Raises:
          InputError: a number that the names leave out.
        """
        if isinstance(value, list):
            return [self.text(place, column, each) for each in value]
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, int):
            return value
        names = self.names or _names(self._features.get(column))
        if names is None:
            return str(value)
        if not 0 <= value < len(names):
            problem = f"{place} has the label {value}, and {len(names)} names are known, from 0 on"
            raise self._file.error(problem, "Leave the entry out, or name all labels")
        return names[value]

    @functools.cached_property
    def _features(self) -> dict[str, Any]:
        found = self._given
        if found is None:
            path = self._file.path().with_name(FEATURES)
            if not path.is_file():
                return {}
            try:
                found = loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                remedy = "Correct the file, or remove it"
                raise InputError(
                    self._file.key, str(path), f"not JSON ({error})", remedy
                ) from error
            found = found.get("features") if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _names(feature: Any) -> list[str] | None:
    """Names of a feature, or of those that it is a list of."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, dict):
        return None
    return name_list(feature.get("names")) or _names(feature.get("feature"))


def name_list(names: Any) -> list[str] | None:
    """A list of texts, or None where it is none."""
    is_names = isinstance(names, list) and names and all(isinstance(n, str) for n in names)
    return names if is_names else None
