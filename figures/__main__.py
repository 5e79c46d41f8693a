"""``python -m figures``."""

from collapipe_jax.command_line import run_reporting_errors
from figures.all import main

raise SystemExit(run_reporting_errors(main))
