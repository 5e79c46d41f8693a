"""Instructions: prompts with answers on file, and a model's template of a chat.

Training and scores see the answers alone. A file has one of these forms, by its columns or keys:
``question`` and ``answer``; ``instruction``, ``output`` and, if there is one, ``input``;
``prompt`` and ``completion``; ``messages``, a list of ``{"role", "content"}``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError, Step
from collapipe_jax.core.files import read_object, write_text
from collapipe_jax.learning.tasks.corpora import Placed, TextFile
from collapipe_jax.learning.tasks.records import Field, Record, read_records, text_values

USER, _ASSISTANT = "user", "assistant"
_ROLES = ("system", USER, _ASSISTANT, "tool")
_MESSAGES = "messages"
_TEMPLATE = "chat_template.jinja"


class Message(NamedTuple):
    """A turn of a chat."""

    role: str
    content: str


class Exchange(NamedTuple):
    """What is asked, and the answer to learn."""

    asked: tuple[Message, ...]
    answer: str

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join([*(message.content for message in self.asked), self.answer])


Sample = str | Exchange
"""A text of a language model."""


def text_of(sample: Sample) -> str:
    """A text, or all of an exchange."""
    return sample if isinstance(sample, str) else sample.text


def learnt_text(sample: Sample) -> str:
    """A text, or the answer of an exchange: what is predicted."""
    return sample if isinstance(sample, str) else sample.answer


class _Form(NamedTuple):
    """Columns of exchanges."""

    columns: tuple[str, ...]
    optional: str = ""  # a further column, whose text may be empty


_FORMS = (
    _Form((_MESSAGES,)),
    _Form(("question", "answer")),
    _Form(("instruction", "output"), "input"),
    _Form(("prompt", "completion")),
    _Form(("prompt", "response")),
)


def form_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns of the exchanges among those of a file; empty where it has none."""
    for form in _FORMS:
        if set(form.columns) <= set(columns):
            return (*form.columns, *([form.optional] if form.optional in columns else []))
    return ()


def read_exchanges(file: TextFile, columns: Sequence[str], step: Step) -> list[Placed[Exchange]]:
    """Exchanges of a file with the columns of a form; of a chat one for each answer in it."""
    fields, found = [Field((name,)) for name in columns], []
    for record in read_records(file, fields, step):
        with step():
            read = _of_messages if columns[0] == _MESSAGES else _of_columns
            found += [(record.place, one) for one in read(file, record)]
    return found


def _of_columns(file: TextFile, record: Record) -> list[Exchange]:
    asked, answer, *more = text_values(file, record)
    prompt = "\n\n".join(part.strip() for part in (asked, *more) if part.strip())
    if not prompt or not answer.strip():
        raise file.error(f"{record.place} has an empty prompt or answer", "Leave it out")
    return [Exchange((Message(USER, prompt),), answer.strip())]


def _of_messages(file: TextFile, record: Record) -> list[Exchange]:
    messages, found = record.values[0], []
    problem = f"{record.place} has no messages of a role in {', '.join(_ROLES)} and a content"
    remedy = 'Write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
    if not isinstance(messages, list):
        raise file.error(problem, remedy)
    turns: list[Message] = []
    for entry in messages:
        role, content = (
            entry.get(key) if isinstance(entry, dict) else None for key in Message._fields
        )
        if role not in _ROLES or not isinstance(content, str):
            raise file.error(problem, remedy)
        if role == _ASSISTANT and turns and content.strip():
            found.append(Exchange(tuple(turns), content.strip()))
        turns.append(Message(role, content))
    if not found:
        raise file.error(f"{record.place} has no answer of the assistant", "Leave it out")
    return found


class ChatTemplate:
    """How a model's chats are written, by the Jinja template in its folder.

    Args:
      source: the template.
      tokens: texts of special pieces by the names that templates have for them, ``bos_token`` say.
    """

    def __init__(self, source: str, tokens: dict[str, str]):
        self.source, self._tokens = source, tokens
        self._template = _compiled(source)

    def render(self, messages: Sequence[Message], *, asks: bool) -> str:
        """The text of some turns, and where it ``asks`` the begin of an answer."""
        turns = [message._asdict() for message in messages]
        return self._template.render(
            messages=turns, add_generation_prompt=asks, tools=None, documents=None, **self._tokens
        )

    def parts(self, exchange: Exchange) -> tuple[str, str]:
        """What is asked up to the begin of the answer, and the answer with what ends it."""
        asked = self.render(exchange.asked, asks=True)
        whole = self.render([*exchange.asked, Message(_ASSISTANT, exchange.answer)], asks=False)
        # A template may change turns once they are answered; then the answer ends as it is.
        return asked, whole.removeprefix(asked) if whole.startswith(asked) else exchange.answer

    def save(self, folder: Path) -> None:
        """Write the template where ``transformers`` looks for it."""
        write_text(folder / _TEMPLATE, self.source)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a model; None where it has none.

        Raises:
          InputError: a template that is none of Jinja's.
        """
        settings = read_object(folder / "tokenizer_config.json") or {}
        path, source = folder / _TEMPLATE, settings.get("chat_template")
        if path.is_file():
            source = path.read_text(encoding="utf-8")
        if isinstance(source, list):  # of several by name
            named = [
                one for one in source if isinstance(one, dict) and one.get("name") == "default"
            ]
            source = named[0].get("template") if named else None
        if not isinstance(source, str):
            return None
        tokens = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            token = settings.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[name] = token
        try:
            return cls(source, tokens)
        except ValueError as error:
            remedy = "Take the original file, or remove it: prompts are then plain text"
            raise InputError("file", str(path), f"is no template ({error})", remedy) from error


def _compiled(source: str) -> Any:
    """A template that cannot reach beyond its variables, as in ``transformers``."""
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        problem = "its template of a chat is read by jinja2, which is not here"
        raise InputError("model", "jinja2", problem, "Run pip install jinja2") from error

    def fail(message: str) -> None:
        problem = f"the model's template of a chat refuses it ({message})"
        raise InputError("messages", "", problem, "Change the order or the roles of the messages")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = fail
    environment.filters["tojson"] = lambda value, **given: json.dumps(
        value, ensure_ascii=False, **given
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(str(error)) from error
