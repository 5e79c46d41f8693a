"""``python -m collapipe_jax`` is the command ``collapipe``."""

from collapipe_jax.cli.main import main

raise SystemExit(main())
