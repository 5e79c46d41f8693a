"""Subword vocabularies of language models: byte-pair encoding of bytes, learnt or from a folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.io.atomic import read_object, write_json, write_text
from collapipe_jax.learning.models.causal_lm import NOTHING
from collapipe_jax.learning.models.config import BOS_ID, EOS_ID, PAD_ID
from collapipe_jax.learning.tasks.subwords import in_short_words, pad_rows

if TYPE_CHECKING:  # the extra `train`, which simulating does without
    from tokenizers import Tokenizer

_SPECIALS = ("<pad>", "<s>", "</s>")
_FILE = "tokenizer.json"
_BYTES = 256


class ByteTokenizer:
    """Text to numbers of pieces and back; every text has pieces, and comes back unchanged.

    Args:
      model: a tokenizer of the library.
      begin: number of the piece that may stand before a text.
      ends: numbers of pieces that end a text; the first is written behind one.
      begins: whether it does stand there, where the model's own rule does not say so.

    Attributes:
      prefix: numbers of the pieces before every text, by the rule of the model (its
        post-processor): the begin, or nothing.
    """

    def __init__(self, model: "Tokenizer", begin: int, ends: Sequence[int], begins: bool = False):
        model.encode_special_tokens = True  # a text that spells out "</s>" is text
        self.model, self.begin, self.ends = model, begin, tuple(ends)
        plain, whole = (model.encode("a", add_special_tokens=s).ids for s in (False, True))
        start = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        self.prefix = whole[:start] or [begin] * begins

    @property
    def size(self) -> int:
        """Number of pieces."""
        return self.model.get_vocab_size()

    def is_piece(self, vocabulary_size: int) -> np.ndarray:
        """Which numbers of a model's vocabulary are pieces: it may be larger, ``[V]`` bool."""
        known = np.zeros(vocabulary_size, bool)
        known[list(self.model.get_vocab(with_added_tokens=True).values())] = True
        return known

    def prompts(self, encoded: Sequence[Sequence[int]], room: int) -> list[list[int]]:
        """What texts are continued from: their prefix and the end of each, of at least a piece."""
        return [[*self.prefix, *ids][-room:] or [self.begin] for ids in encoded]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Numbers of the pieces of each text, without its begin and end."""
        found = self.model.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def rows(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Texts with prefix and end, int32 ``[n, length + 1]`` with ``NOTHING`` behind them.

        A text of more pieces takes several rows, each of which begins with the last piece of the
        row before. So each piece, end included, is predicted once, but for the first piece of a
        text that nothing stands before.
        """
        cut = []
        for ids in self.encode(texts):
            whole = [*self.prefix, *ids, self.ends[0]]
            starts = range(0, len(whole) - 1, length)
            cut += [whole[start : start + length + 1] for start in starts]
        return pad_rows(cut, length + 1, NOTHING)

    def continuation(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        """Text of new pieces after a prompt's: spaces depend on what is before them."""
        before = self.model.decode(list(prompt))
        return self.model.decode([*prompt, *new])[len(before) :]

    def save(self, folder: Path, length: int) -> None:
        """Write ``tokenizer.json`` and its settings for ``AutoTokenizer`` of ``transformers``."""
        write_text(folder / _FILE, self.model.to_str(pretty=True))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": length,
            "bos_token": self.model.id_to_token(self.begin),
            "add_bos_token": bool(self.prefix),
            "eos_token": self.model.id_to_token(self.ends[0]),
            "clean_up_tokenization_spaces": False,
        }
        if self.model.token_to_id(_SPECIALS[PAD_ID]) == PAD_ID:
            settings["pad_token"] = _SPECIALS[PAD_ID]
        write_json(folder / "tokenizer_config.json", settings)

    @classmethod
    def from_folder(cls, folder: Path, document: Mapping[str, Any]) -> "ByteTokenizer":
        """The tokenizer beside a model, whose ``config.json`` numbers its begin and end.

        Whether texts begin with the begin is the tokenizer's own rule: its post-processor, and
        where it has none ``add_bos_token`` of ``tokenizer_config.json``.

        Raises:
          InputError: a file that cannot be read, or no number of the end.
        """
        from tokenizers import Tokenizer

        path = folder / _FILE
        try:
            model = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no error of its own
            problem = f"cannot be read ({error})"
            raise InputError("file", str(path), problem, "Take the original file") from None
        ends = document.get("eos_token_id")
        ends = [ends] if isinstance(ends, int) else ends
        if not isinstance(ends, list) or not ends or not all(isinstance(e, int) for e in ends):
            problem, remedy = "is no number of the end of a text", "Take the original file"
            raise InputError(f"{folder / 'config.json'}: eos_token_id", ends, problem, remedy)
        begin = document.get("bos_token_id")
        settings = read_object(folder / "tokenizer_config.json") or {}
        begins = isinstance(begin, int) and settings.get("add_bos_token") is True
        return cls(model, begin if isinstance(begin, int) else ends[0], ends, begins)


def check_room(vocabulary_size: int) -> None:
    """Refuse a vocabulary without room for all bytes."""
    if vocabulary_size < (least := len(_SPECIALS) + _BYTES):
        problem, remedy = f"the bytes and special pieces alone take {least}", f"Use {least} or more"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, remedy)


def train_byte_pieces(lines: Iterable[str], vocabulary_size: int) -> ByteTokenizer:
    """Learn a byte-pair encoding of UTF-8; a deterministic function of the lines.

    Numbers 0 to 2 are padding, begin and end; then follow the 256 bytes, and merged pairs until
    the vocabulary is full or no pair occurs twice.

    Raises:
      InputError: a vocabulary without room for all bytes.

    Source: Radford et al., Language models are unsupervised multitask learners (2019).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    check_room(vocabulary_size)
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(map(in_short_words, lines), trainer)
    # Other programs begin a text as training does.
    begin = _SPECIALS[BOS_ID]
    model.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, BOS_ID)]
    )
    return ByteTokenizer(model, BOS_ID, [EOS_ID])
