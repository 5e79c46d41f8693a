"""Bytes of a file as text: unpacked where they are packed, with advice where they are no text."""

import bz2
import gzip
import lzma
import re
import zlib
from typing import NamedTuple

PACKED_SUFFIXES = (".gz", ".bz2", ".xz")

_PACKED = {
    rb"\x1f\x8b": gzip.decompress,
    rb"BZh[1-9]1AY&SY": bz2.decompress,
    rb"\xfd7zXZ\x00": lzma.decompress,
}
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_FORMATS = {  # by their first bytes
    rb"PAR1(?s:.*)PAR1\Z": ("a Parquet table", "Call it .parquet"),
    rb"PK\x03\x04": ("a zip archive or a spreadsheet", "Unpack it, or save the sheet as .csv"),
    rb"\x28\xb5\x2f\xfd": ("compressed by zstd", "Unpack it with zstd -d"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it"),
    rb"ARROW1": ("an Arrow table", "Write it as .jsonl, e.g. by to_json of datasets"),
    rb"\xff\xfe|\xfe\xff": ("UTF-16", "Convert the file, e.g. with iconv -f utf-16 -t utf-8"),
}
_NAMED = 10  # lines


class UnreadableText(NamedTuple):
    """Why bytes are no text, and the remedy."""

    problem: str
    remedy: str


def unpack(data: bytes) -> bytes | UnreadableText:
    """The content of data that ``gzip``, ``bzip2`` or ``xz`` packed; other data as they are."""
    for start, decompress in _PACKED.items():
        if re.match(start, data):
            try:
                return decompress(data)
            except _DAMAGED as error:
                problem = f"its compressed content is damaged ({error})"
                return UnreadableText(problem, "Take the original file")
    return data


def decode(data: bytes) -> str | UnreadableText:
    """Text of bytes in UTF-8, without a byte order mark."""
    for start, (what, remedy) in _FORMATS.items():
        if re.match(start, data):
            return UnreadableText(f"no text in UTF-8, but {what}", remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in data:
            return UnreadableText("no text, but binary data", "Give a text file in UTF-8")
    broken = [n for n, line in enumerate(data.split(b"\n"), start=1) if not _is_utf8(line)]
    named = f"line {broken[0]} holds"
    if len(broken) > 1:
        more = f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        named = f"lines {', '.join(map(str, broken[:_NAMED]))}{more} hold"
    remedy = "Convert the file, e.g. with iconv -f latin1 -t utf-8"
    return UnreadableText(f"{named} bytes that are not UTF-8", remedy)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
