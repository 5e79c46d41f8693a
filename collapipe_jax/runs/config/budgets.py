"""Energy budgets that follow the work of a round."""

from typing import Any

from collapipe_jax.runs.config.default import Config

BUDGETS = ("control.control_unit_budget_j", "control.device_budget_j")
LOCAL_STEPS = "training.local_steps"


def with_local_steps(config: Config, count: int) -> dict[str, Any]:
    """Overrides that set the number of local steps, and the budgets in proportion.

    Under fixed budgets nobody could pay for the computing of more steps.

    Example:
      >>> import collapipe_jax as cp
      >>> with_local_steps(cp.read_config("paper"), 8)["control.device_budget_j"]
      960.0
    """
    factor = count / config.training.local_steps
    scaled = {key: factor * config.control[key.removeprefix("control.")] for key in BUDGETS}
    return {LOCAL_STEPS: count, **scaled}
