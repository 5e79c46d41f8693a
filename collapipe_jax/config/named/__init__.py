"""Configurations that the commands know by name."""

NAMED = {
    "default": "default",
    **{name: f"named.{name}" for name in ("quickstart", "paper", "clinc150", "bc5cdr", "tatoeba")},
}
"""Modules of ``collapipe_jax.config`` by the names of configurations."""
