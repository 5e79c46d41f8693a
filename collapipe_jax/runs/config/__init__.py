"""Configuration: keys, checks, and the structs that they become."""

NAMED = {
    "default": ("",),
    "quickstart": ("",),
    "paper": ("", "rich", "transformer", "lowband", "reuse"),
    "classification": ("",),
    "tagging": ("",),
    "translation": ("",),
    "masked_lm": ("",),
    "causal_lm": ("",),
    "clinc150": ("", "plain", "base"),
    "bc5cdr": ("", "plain", "base"),
    "tatoeba": ("", "base"),
}
"""Variants of the configurations that have a name; functions of ``named.py`` make them.

They are here, since help and completion read them without what training needs.
"""
