"""The one error a user sees for wrong input."""

import contextlib
from collections.abc import Iterator, Mapping


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
        super().__init__(f"{key} = {value!r}: {problem}. {remedy}.")

    def __reduce__(self):
        """So that other processes can raise it too."""
        return type(self), (self.key, self.value, self.problem, self.remedy)


class InputWarning(UserWarning):
    """Input that is allowed and hardly meant; the programs print it as one line."""


@contextlib.contextmanager
def under_keys(names: Mapping[str, str]) -> Iterator[None]:
    """Report a module's errors under the configuration's keys, here by the module's keys."""
    try:
        yield
    except InputError as error:
        key = names.get(error.key, error.key)
        raise InputError(key, error.value, error.problem, error.remedy) from None
