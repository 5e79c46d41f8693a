"""Shares of the parts of an experiment, one for each of several processes."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from collapipe_jax.core.errors import InputError

T = TypeVar("T")


class Shard(NamedTuple):
    """A share of the parts of an experiment."""

    index: int = 0
    count: int = 1

    def of(self, parts: Sequence[T]) -> list[T]:
        """Its own of all parts: of ``count`` neighbours one."""
        return list(parts[self.index :: self.count])


WHOLE = Shard()
"""All parts."""


def read_shard(text: str) -> Shard:
    """A shard written as ``i/n``, ``i`` from 0.

    Raises:
      InputError: if the text has another form.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError("--shard", text, "no shard", "Write i/n with i from 0 to n - 1")
    return Shard(int(index), int(count))
