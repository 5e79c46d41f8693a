"""Subword vocabularies: byte-pair encoding of text and of bytes, and WordPiece as in BERT."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import read_object, write_json, write_text
from collapipe_jax.learning.models.bert import UNLABELLED
from collapipe_jax.learning.models.causal_lm import NOTHING
from collapipe_jax.learning.models.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from collapipe_jax.learning.models.tensor_files import read_json
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.instructions import ChatTemplate, Exchange, Message, Sample

if TYPE_CHECKING:  # the extra `train`, which simulating does without
    from tokenizers import Tokenizer

BPE_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")

_PAD, _UNKNOWN, _CLASSIFY, _SEPARATE = SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MASK = "[MASK]"  # no text has it; other programs that read the vocabulary ask for it
CONTINUES = "##"
_NO_LENGTH = int(1e30)  # what ``transformers`` writes where a tokenizer has no longest text
_TOKENIZER_CONFIG = "tokenizer_config.json"
_LONG_WORD = re.compile(r"\S{1000}")


class BpeTokenizer:
    """Text to subword ids and back; ids 0 to 3 are padding, begin, end and unknown.

    Subwords never cross a space or join a punctuation mark. Spaces are part of the subwords, so a
    decoded sentence is plain text, ready for BLEU. Normalised text of known characters comes back
    unchanged; others become the unknown id and are lost.
    """

    def __init__(self, model: "Tokenizer"):
        # a sentence that spells out "</s>" is text, not the end of a sentence
        model.encode_special_tokens = True
        self.model = model

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Subword ids of each text, without begin, end or padding; empty for empty text."""
        return _ids(self.model, texts)

    def decode_batch(self, ids: np.ndarray | Sequence[Sequence[int]]) -> list[str]:
        """Plain text of rows of ids, up to the first end id, without special and unknown ids."""
        rows = [itertools.takewhile(lambda i: i != EOS_ID, np.asarray(row).tolist()) for row in ids]
        return self.model.decode_batch([list(row) for row in rows])


def train_bpe(lines: Iterable[str], vocabulary_size: int) -> BpeTokenizer:
    """Learn a byte-pair encoding; a deterministic function of the lines.

    Every character of the lines is kept, and the most frequent pairs are merged until the
    vocabulary is full or no pair occurs twice.

    Raises:
      InputError: a vocabulary too small for the characters, or no text at all.

    Source: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword
    units (ACL 2016).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE(unk_token=BPE_SPECIALS[UNK_ID]))
    spaces = pre_tokenizers.Metaspace(prepend_scheme="always")
    marks = pre_tokenizers.Punctuation(behavior="isolated")
    model.pre_tokenizer = pre_tokenizers.Sequence([spaces, marks])
    model.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(BPE_SPECIALS),
        show_progress=False,
    )
    model.train_from_iterator(map(_in_short_words, lines), trainer)
    _check_size(model.get_vocab_size(), len(BPE_SPECIALS), vocabulary_size)
    return BpeTokenizer(model)


class WordPiece:
    """Text to subword ids of one vocabulary.

    Text is cleaned, lowercased and stripped of accents if ``lowercase``, and cut at white
    space, around punctuation and around CJK characters. Each word becomes the longest piece of
    the vocabulary that it starts with, then the longest that continues from there, or one
    unknown id where that fails. A text that spells out ``[SEP]`` is text.

    Source: Schuster and Nakajima, Japanese and Korean voice search (ICASSP 2012); Devlin et
    al., BERT (NAACL 2019).
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool = True):
        self.pieces = tuple(pieces)
        self.lowercase = lowercase
        self._number = {piece: number for number, piece in enumerate(self.pieces)}
        self._model = _wordpiece_model(self._number, lowercase)

    @classmethod
    def from_file(cls, name: str, lowercase: bool = True) -> "WordPiece":
        """Read ``vocab.txt`` of BERT, one piece a line, its id the number of the line from 0.

        Raises:
          InputError: an unreadable file, an empty or repeated piece, a missing special piece
            (``[PAD]`` must be the first), or pieces of the other case, with which most words would
            silently become unknown.
        """
        pieces = _read_pieces(TextFile("task.vocabulary", name))
        _check_case(name, pieces, lowercase)
        return cls(pieces, lowercase)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary for ``from_file``; its directory must exist."""
        write_text(Path(path), "".join(f"{piece}\n" for piece in self.pieces))

    @classmethod
    def from_pretrained(cls, folder: Path, positions: int) -> tuple["WordPiece", int]:
        """The vocabulary beside a BERT, and the length of a row.

        Folders of other programs may lack ``vocab.txt``, or the longest text: then
        ``tokenizer.json`` has the pieces, and a row is as long as the model's ``positions``.

        Raises:
          InputError: a missing or damaged file, or a vocabulary other than ``tokenizer.json`` has.
        """
        path = folder / _TOKENIZER_CONFIG
        settings = read_json(path, "Name the folder of a trained model")
        fast = read_object(folder / "tokenizer.json") or {}
        normalizer, model = ({**(fast.get(key) or {})} for key in ("normalizer", "model"))
        lowercase = settings.get("do_lower_case", normalizer.get("lowercase"))
        length = settings.get("model_max_length", _NO_LENGTH)
        if length == _NO_LENGTH:
            length = positions
        if type(length) is not int or length < 3 or type(lowercase) is not bool:
            problem = "lacks do_lower_case, or has a model_max_length below 3"
            raise InputError("file", str(path), problem, "Take the original file")
        numbers = model.get("vocab") or {}
        file = TextFile("file", str((folder / "vocab.txt").absolute()))
        if numbers and not (folder / "vocab.txt").exists():
            return cls(sorted(numbers, key=numbers.__getitem__), lowercase), length
        pieces = _read_pieces(file)
        # Other programs read tokenizer.json, whose vocabulary is the same.
        other = [n for n, piece in enumerate(pieces) if numbers and numbers.get(piece) != n]
        if other:
            problem = f"line {other[0] + 1} is another piece than in tokenizer.json beside it"
            raise file.error(problem, "Take both files from one source")
        return cls(pieces, lowercase), length

    def save_pretrained(self, folder: Path, length: int) -> None:
        """Write the vocabulary for ``AutoTokenizer`` of ``transformers``.

        Args:
          folder: for ``vocab.txt``, ``tokenizer.json`` and ``tokenizer_config.json``.
          length: longest text in tokens, to which truncation cuts.
        """
        from tokenizers import Tokenizer, decoders, processors

        self.save(folder / "vocab.txt")
        model = Tokenizer.from_str(self._model.to_str())
        model.add_special_tokens([each for each in (*SPECIAL_PIECES, MASK) if each in self._number])
        model.decoder = decoders.WordPiece(prefix=CONTINUES)
        ends = [(end, self._number[end]) for end in (_CLASSIFY, _SEPARATE)]
        model.post_processor = processors.TemplateProcessing(
            single=f"{_CLASSIFY} $A {_SEPARATE}",
            pair=f"{_CLASSIFY} $A {_SEPARATE} $B:1 {_SEPARATE}:1",
            special_tokens=ends,
        )
        write_text(folder / "tokenizer.json", model.to_str(pretty=True))
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "model_max_length": length,
            "split_special_tokens": True,  # a text that spells out [SEP] is text
            "mask_token": MASK if MASK in self._number else None,
        }
        write_json(folder / _TOKENIZER_CONFIG, settings)

    def pieces_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the pieces of each text."""
        return _ids(self._model, texts)

    def encode_texts(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, int]:
        """Ids of texts ``[n, length]`` int32, and the number of those that are cut to it.

        Each has ``[CLS]`` before it, ``[SEP]`` behind it, and padding.
        """
        rows, room = self.pieces_of(texts), length - 2
        token_ids = pad_rows([self.enclose(row[:room]) for row in rows], length, PAD_ID)
        return token_ids, sum(len(row) > room for row in rows)

    def encode_windows(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Ids of consecutive windows of all texts, enclosed, each of at most ``length``."""
        room = length - 2
        return [
            self.enclose(row[start : start + room])
            for row in self.pieces_of(texts)
            for start in range(0, len(row), room)
        ]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of the pieces of each word; a word without pieces is the unknown id.

        Words are the annotator's, and may fall into several by BERT's rules.
        """
        return [ids or [self._number[_UNKNOWN]] for ids in self.pieces_of(words)]

    def find_words(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Start and end of the words of each text by BERT's rules, in characters."""
        found = []
        for encoding in self._model.encode_batch(list(texts), add_special_tokens=False):
            places: dict[int | None, tuple[int, int]] = {}
            for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
                places[word] = (places.get(word, (start, end))[0], end)
            found.append(list(places.values()))
        return found

    def enclose(self, ids: Sequence[int]) -> list[int]:
        """The ids between those of ``[CLS]`` and ``[SEP]``."""
        return [self._number[_CLASSIFY], *ids, self._number[_SEPARATE]]

    def drop_pieces(
        self, token_ids: np.ndarray, labels: np.ndarray, rate: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of texts segmented anew, skipping pieces of the vocabulary at random.

        A vocabulary learnt from a small corpus holds most of its words whole, so training hardly
        meets the pieces that new words fall into. Random cuts of known words train these pieces.
        A text that gets too long loses its end, except the closing piece.

        Args:
          token_ids: ``[..., S]`` int32 as made above, padded behind.
          labels: of every piece ``[..., S]``. The first of the pieces that one is cut into keeps
            its label.
          rate: probability in [0, 1] of skipping a match; single characters are never skipped.
          rng: decides which pieces are skipped.

        Source: Hiraoka, MaxMatch-Dropout: subword regularization for WordPiece (COLING 2022).
        """
        length = token_ids.shape[-1]
        ids, marks = [], []
        for row, own in zip(token_ids.reshape(-1, length), labels.reshape(-1, length), strict=True):
            *text, closing = row[row != PAD_ID]
            found, marked = [], []
            for number, label in zip(text, own, strict=False):
                cut = self._cut(number, rate, rng)
                found += cut
                marked += [label] + [UNLABELLED] * (len(cut) - 1)
            ids.append([*found[: length - 1], closing])
            marks.append(marked[: length - 1])
        return (
            pad_rows(ids, length, PAD_ID).reshape(token_ids.shape),
            pad_rows(marks, length, UNLABELLED).reshape(token_ids.shape),
        )

    def _cut(self, number: int, rate: float, rng: np.random.Generator) -> list[int]:
        """The longest piece that is not skipped, then the longest that continues from there."""
        piece = self.pieces[number]
        if is_special(piece):
            return [number]
        text = piece.removeprefix(CONTINUES)
        prefix = piece[: len(piece) - len(text)]
        found, start = [], 0
        while start < len(text):
            for end in range(len(text), start, -1):
                match = self._number.get(prefix + text[start:end])
                if match is not None and (end == start + 1 or rng.random() >= rate):
                    break
            else:  # the vocabulary lacks this character
                return [number]
            found.append(match)
            start, prefix = end, CONTINUES
        return found


def is_special(piece: str) -> bool:
    """Whether a piece of a vocabulary is no text."""
    return len(piece) > 2 and piece.startswith("[") and piece.endswith("]")


def train_wordpiece(
    lines: Sequence[str], vocabulary_size: int, lowercase: bool = True
) -> WordPiece:
    """Learn a vocabulary from training texts; arguments and errors as of ``train_bpe``.

    ``[MASK]`` is the last piece.
    """
    from tokenizers import trainers

    model = _wordpiece_model({_UNKNOWN: 0}, lowercase)
    endings = _continuing_characters(model, lines)
    # The trainer numbers continuing characters in the order of a hash map that differs from
    # run to run, and breaks ties by these numbers. As special pieces they are numbered first.
    fixed = [*SPECIAL_PIECES, *(CONTINUES + character for character in endings)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(vocabulary_size - 1, 0),  # and [MASK]
        min_frequency=2,
        special_tokens=fixed,
        show_progress=False,
    )
    model.train_from_iterator(map(_in_short_words, lines), trainer)
    ids = model.get_vocab()
    pieces = [*sorted(ids, key=ids.__getitem__), MASK]
    _check_size(len(pieces), len(SPECIAL_PIECES) + 1, vocabulary_size)
    return WordPiece(pieces, lowercase)


def bucket(length: int, shortest: int = 16) -> int:
    """The least power of two from that length and the shortest on; few lengths are compiled."""
    return max(shortest, 1 << (length - 1).bit_length())


def pad_rows(rows: Sequence[Sequence[int]], length: int, filling: int) -> np.ndarray:
    """Rows of at most that length, padded behind to int32 ``[n, length]``."""
    padded = np.full((len(rows), length), filling, dtype=np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _in_short_words(line: str) -> str:
    """A line to learn from; learning takes the square of the length of its longest word."""
    return _LONG_WORD.sub(r"\g<0> ", line)


def _ids(model: "Tokenizer", texts: Sequence[str]) -> list[list[int]]:
    encodings = model.encode_batch(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _wordpiece_model(vocabulary: dict[str, int], lowercase: bool) -> "Tokenizer":
    """As BERT has it, where words of more than 100 characters are unknown."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    model = Tokenizer(models.WordPiece(vocabulary, unk_token=_UNKNOWN))
    model.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return model


def _continuing_characters(model: "Tokenizer", lines: Sequence[str]) -> list[str]:
    """Characters that follow another one in some word, sorted."""
    words = {
        word
        for line in lines
        for word, _ in model.pre_tokenizer.pre_tokenize_str(model.normalizer.normalize_str(line))
    }
    return sorted(set().union(*(word[1:] for word in words)))


def _check_size(size: int, specials: int, wanted: int) -> None:
    if size == specials:
        remedy = "Use a larger corpus"
        raise InputError("task.vocabulary_size", wanted, "no text to learn it from", remedy)
    if size > wanted:
        problem = f"the characters of the corpus alone take {size}"
        remedy = f"Use {size} or more, far more to have whole words"
        raise InputError("task.vocabulary_size", wanted, problem, remedy)


def _read_pieces(file: TextFile) -> list[str]:
    """One piece a line, whatever the line ends."""
    remedy = "Give the vocab.txt of a BERT model, one piece a line"
    pieces = [line.rstrip("\r") for line in file.lines()]
    first_at: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise file.error(f"line {number} is empty", remedy)
        if (earlier := first_at.setdefault(piece, number)) != number:
            raise file.error(f"line {number} repeats line {earlier}", remedy)
    missing = [token for token in SPECIAL_PIECES if token not in first_at]
    if missing:
        raise file.error(f"it lacks {', '.join(missing)}", remedy)
    if first_at[_PAD] != PAD_ID + 1:
        problem = f"{_PAD} is in line {first_at[_PAD]}, and padding must have id {PAD_ID}"
        raise file.error(problem, f"Put {_PAD} in the first line")
    return pieces


def _check_case(name: str, pieces: Sequence[str], lowercase: bool) -> None:
    own = [piece for piece in pieces if piece not in SPECIAL_PIECES and piece[0] != "["]
    capitals = [piece for piece in own if piece != piece.lower()]
    if lowercase and capitals:
        problem = f"{name} has capitals, as in {capitals[0]!r}, which lowercase text never meets"
        raise InputError("task.lowercase", True, problem, "Use False with this vocabulary")
    if not lowercase and not capitals and any(piece.islower() for piece in own):
        problem = f"{name} has no capitals, so that every word with one would be unknown"
        raise InputError("task.lowercase", False, problem, "Use True with this vocabulary")


# Subword vocabularies of language models: byte-pair encoding of bytes, learnt or from a folder.

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
      chat: the model's template of a chat, if it has one.

    Attributes:
      prefix: numbers of the pieces before every text, by the rule of the model (its
        post-processor): the begin, or nothing.
    """

    def __init__(
        self,
        model: "Tokenizer",
        begin: int,
        ends: Sequence[int],
        begins: bool = False,
        chat: ChatTemplate | None = None,
    ):
        self.chat = chat
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

    def asked(self, messages: Sequence[Message]) -> list[int]:
        """Pieces of what is asked, up to the begin of an answer.

        The model's template of a chat says how; without one contents are lines of plain text.
        """
        if self.chat is not None:
            return self._marked(self.chat.render(messages, asks=True))
        return [*self.prefix, *self.encode(["\n".join(one.content for one in messages) + "\n"])[0]]

    def exchange(self, exchange: Exchange) -> tuple[list[int], list[int]]:
        """Pieces of what is asked, and of the answer with its end."""
        if self.chat is None:
            asked, answer = self.asked(exchange.asked), self.encode([exchange.answer])[0]
        else:
            asked, answer = map(self._marked, self.chat.parts(exchange))
        end = next((i for i, piece in enumerate(answer) if piece in self.ends), None)
        return asked, [*answer, self.ends[0]] if end is None else answer[: end + 1]

    def _marked(self, text: str) -> list[int]:
        """Pieces of a text whose special pieces are spelt out, as a template writes them."""
        self.model.encode_special_tokens = False
        try:
            return self.model.encode(text, add_special_tokens=False).ids
        finally:
            self.model.encode_special_tokens = True

    def lengths(self, samples: Sequence[Sample]) -> list[int]:
        """Pieces of each text or exchange, with prefix and end."""
        more = len(self.prefix) + 1
        return [
            len(self.encode([each])[0]) + more
            if isinstance(each, str)
            else sum(map(len, self.exchange(each)))
            for each in samples
        ]

    def exchange_rows(
        self, exchanges: Sequence[Exchange], length: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """A row for each exchange, and which tokens are the answer's; how many are cut.

        Both are ``[n, length + 1]``. Of a prompt that is too long the end is kept, and of an answer
        the begin. The first token of a row counts as asked: nothing predicts it.
        """
        rows, asked_tokens, cut = [], [], 0
        for exchange in exchanges:
            asked, answer = self.exchange(exchange)
            cut += len(asked) + len(answer) > length + 1
            answer = answer[:length]
            asked = asked[-(length + 1 - len(answer)) :]
            rows.append([*asked, *answer])
            asked_tokens.append(max(len(asked), 1))
        ids = pad_rows(rows, length + 1, NOTHING)
        is_answer = np.arange(length + 1) >= np.array(asked_tokens)[:, None]
        return ids, is_answer & (ids != NOTHING), cut

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
        if self.chat is not None:
            self.chat.save(folder)

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
        chat = ChatTemplate.from_folder(folder)
        return cls(model, begin if isinstance(begin, int) else ends[0], ends, begins, chat)


def check_pieces(path: Path, pieces: int, entries: int) -> None:
    """Refuse a vocabulary on file of more pieces than its model has entries for."""
    if pieces > entries:
        problem = f"has {pieces} pieces, the model {entries}"
        raise InputError("file", str(path), problem, "Take the original file")


def check_entries(vocabulary_size: int, pieces: int) -> None:
    """Refuse a configuration with fewer entries than its vocabulary has pieces."""
    if vocabulary_size < pieces:
        problem, remedy = f"the vocabulary has {pieces}", f"Set it to {pieces}"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, remedy)


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
    model.train_from_iterator(map(_in_short_words, lines), trainer)
    # Other programs begin a text as training does.
    begin = _SPECIALS[BOS_ID]
    model.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, BOS_ID)]
    )
    return ByteTokenizer(model, BOS_ID, [EOS_ID])
