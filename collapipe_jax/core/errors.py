"""The errors a user sees for wrong input, and how several are reported at once."""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


class InputError(ValueError):
    """Wrong input: its key, its value and a remedy.

    The command-line programs print it as a single message and exit with status 2.

    Example:
      >>> import collapipe_jax as cp
      >>> try:
      ...     cp.read_config("quickstart", {"network.cluster": 2})
      ... except cp.InputError as error:
      ...     print(error.key, "|", error.problem)
      network.cluster | unknown key
    """

    def __init__(self, key: str, value: object, problem: str, remedy: str):
        self.key, self.value, self.problem, self.remedy = key, value, problem, remedy
        shown = [shortened(text) for text in (key, repr(value), problem, remedy)]
        end = "" if remedy.endswith("?") else "."
        super().__init__("{} = {}: {}. {}".format(*shown) + end)

    def __reduce__(self):
        """So that other processes can raise it too."""
        return type(self), (self.key, self.value, self.problem, self.remedy)

    @property
    def errors(self) -> tuple["InputError", ...]:
        """All that is wrong, one error each."""
        return (self,)


def shortened(text: str, longest: int = 900) -> str:
    """A text on one line; the middle of a long one is cut out, between words where there are some.

    >>> shortened("one two three four five six seven eight", 20)
    'one two ... [27 characters] ... eight'
    """
    text = " ".join(text.splitlines())
    if len(text) <= longest:
        return text
    half = longest // 2
    # A word may be longer than the part.
    start, end = text[:half], text[-half:]
    if (last := start.rfind(" ", half // 2)) > 0:
        start = start[:last]
    end = end[end.find(" ", 0, half // 2) + 1 :]
    cut = f"{start} ... [{len(text) - len(start) - len(end)} characters] ... {end}"
    return cut if len(cut) < len(text) else text


class InputErrors(InputError):
    """Several wrong inputs; key, value, problem and remedy are those of the first."""

    def __init__(self, errors: Sequence[InputError]):
        first = errors[0]
        super().__init__(first.key, first.value, first.problem, first.remedy)
        self._errors = tuple(errors)
        lines = "".join(f"\n  {error}" for error in errors)
        self.args = (f"{len(errors)} things are wrong:{lines}",)

    def __reduce__(self):
        """As of one error."""
        return type(self), (self._errors,)

    @property
    def errors(self) -> tuple[InputError, ...]:
        """All that is wrong, one error each."""
        return self._errors


class InputWarning(UserWarning):
    """Input that a run accepts, but that its user should know of."""


class TrainingError(RuntimeError):
    """Training that broke down; its last good checkpoint is kept.

    The command-line programs print it as a single message and exit with status 1. It is no
    :class:`InputError`: nothing is wrong with the configuration as such.

    Example:
      >>> import collapipe_jax as cp
      >>> issubclass(cp.TrainingError, cp.InputError)
      False
    """


class HostError(RuntimeError):
    """Another host has failed, whose output has the reason."""


class AlreadyReported(Exception):
    """Ends a step that needs what another step failed to find; that error is reported already."""


class ValidValues(dict[str, Any]):
    """Right values, by name; to ask for any other raises ``AlreadyReported``."""

    def __missing__(self, name: str) -> Any:
        """End the step that asks."""
        raise AlreadyReported(name)


Step = Callable[[], contextlib.AbstractContextManager[None]]
"""Makes a block whose error ends the block alone."""


@contextlib.contextmanager
def collect() -> Iterator[Step]:
    """Go on after errors, and raise all of them, each once, at the end.

    >>> with collect() as step:
    ...     for name in ("a", "b"):
    ...         with step():
    ...             raise InputError(name, 0, "is zero", "Give 1")
    Traceback (most recent call last):
    collapipe_jax.core.errors.InputErrors: 2 things are wrong:
      a = 0: is zero. Give 1.
      b = 0: is zero. Give 1.

    Raises:
      InputError: the only one, or ``InputErrors``.
      AlreadyReported: if a step ended by it, and nothing else is wrong.
    """
    found: list[InputError] = []
    missing: list[AlreadyReported] = []

    @contextlib.contextmanager
    def step() -> Iterator[None]:
        try:
            yield
        except InputError as error:
            found.extend(each for each in error.errors if str(each) not in map(str, found))
        except AlreadyReported as error:
            missing.append(error)

    with step():
        yield step
    if found:
        raise _joined(found)
    if missing:
        raise missing[0]


@contextlib.contextmanager
def rename_error_keys(names: Mapping[str, str]) -> Iterator[None]:
    """Report a module's errors under the configuration's keys, here by the module's keys."""
    try:
        yield
    except InputError as error:
        found = [(names.get(each.key, each.key), each) for each in error.errors]
        errors = [InputError(key, each.value, each.problem, each.remedy) for key, each in found]
        raise _joined(errors) from None


def _joined(errors: Sequence[InputError]) -> InputError:
    return errors[0] if len(errors) == 1 else InputErrors(errors)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a wrong one probably means, if any is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the nearest known name is meant; empty if none is close."""
    near = nearest(name, known)
    return f"Did you mean {near}?" if near else ""


def require_positive(**counts: int) -> None:
    """Check, or raise an ``InputError``, that options by these names are 1 or more."""
    for name, value in counts.items():
        if value < 1:
            key = f"--{name.replace('_', '-')}"
            raise InputError(key, value, "not positive", "Give 1 or more")


def require_kind(name: str, value: object, kind: type, remedy: str) -> None:
    """Check, or raise an ``InputError``, that an argument is of a kind."""
    if not isinstance(value, kind):
        shown = value if isinstance(value, str) else type(value).__name__
        raise InputError(name, shown, f"not of type {kind.__name__}", remedy)
