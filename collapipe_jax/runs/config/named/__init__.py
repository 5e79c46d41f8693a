"""Configurations that the commands know by name."""

_NAMED = ("quickstart", "paper", "classification", "tagging", "translation")
_NAMED += ("masked_lm", "causal_lm")
_OF_CORPORA = ("clinc150", "bc5cdr", "tatoeba")

NAMED = {"default": "default", **{name: f"named.{name}" for name in (*_NAMED, *_OF_CORPORA)}}
"""Modules of ``collapipe_jax.runs.config`` by the names of configurations."""
