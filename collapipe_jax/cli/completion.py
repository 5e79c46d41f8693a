"""Print what completes commands, options and keys in a shell.

    eval "$(collapipe completion bash)"
    eval "$(collapipe completion zsh)"
    collapipe completion fish > ~/.config/fish/completions/collapipe.fish

Put the line into the start-up file of the shell. The script is made once and starts no Python.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collapipe_jax.cli.main import COMMANDS
from collapipe_jax.cli.options import make_parser
from collapipe_jax.runs.config import NAMED
from collapipe_jax.runs.config.default import KEYS
from collapipe_jax.runs.config.keys import Key

_SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_collapipe() {{
  local word=${{COMP_WORDS[COMP_CWORD]}}
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{commands}" -- "$word")); return; fi
  # Words end at '=' too.
  if [ "$word" = "=" ] || [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "=" ]; then
    local name=${{COMP_WORDS[COMP_CWORD-1]}}
    [ "$name" = "=" ] && name=${{COMP_WORDS[COMP_CWORD-2]}}
    [ "$word" = "=" ] && word=
    case $name in
      --config) COMPREPLY=($(compgen -W "{configs}" -- "$word") $(compgen -f -- "$word"));;
      *) COMPREPLY=($(compgen -f -- "$word"));;
    esac
    return
  fi
  local options=
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  COMPREPLY=($(compgen -W "$options" -- "$word"))
}}
complete -o nospace -o filenames -F _collapipe collapipe"""


def main(argv: Sequence[str]) -> None:
    """Print the script of a shell."""
    parser = make_parser(__doc__)
    parser.add_argument("shell", choices=_SHELLS, help="which shell")
    print(_script(parser.parse_args(argv).shell))


def _script(shell: str) -> str:
    """The script of a shell."""
    options = {command: _options(command) for command in COMMANDS if command != "completion"}
    if shell == "fish":
        return "\n".join(_fish(options))
    cases = "\n".join(
        f'    {command}) options="{" ".join(own)}";;' for command, own in options.items()
    )
    made = _BASH.format(commands=" ".join(COMMANDS), configs=" ".join(NAMED), cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{made}" if shell == "zsh" else made


def _options(command: str) -> list[str]:
    """Options of a command as its help lists them, and keys where it takes a configuration."""
    module = importlib.import_module(f"{__package__}.{command}")
    with contextlib.redirect_stdout(text := io.StringIO()), contextlib.suppress(SystemExit):
        module.main(["--help"])
    flags = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)( [A-Z]\w*)?", text.getvalue(), re.MULTILINE)
    found = [f"{flag}=" if takes else flag for flag, takes in flags]
    return found + [f"--config.{key}=" for key in _keys(KEYS)] * ("--config=" in found)


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, entry in table.items():
        yield from [prefix + name] if isinstance(entry, Key) else _keys(entry, f"{prefix}{name}.")


def _fish(options: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "complete -c collapipe -n __fish_use_subcommand -f -a '{}'".format(" ".join(COMMANDS))
    for command, own in options.items():
        seen = f"complete -c collapipe -n '__fish_seen_subcommand_from {command}'"
        for option in own:
            takes = " -r" if option.endswith("=") else ""
            yield f"{seen}{takes} -l {option.strip('-=')}"
