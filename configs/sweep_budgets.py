"""Policies against the energy budgets, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_budgets.py --workdir=runs/sweep_budgets
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Mean energy budget of a device [J]",
        "log": True,
        "points": [(joules, {"control.device_budget_j": float(joules)}) for joules in _BUDGETS],
    }


_BUDGETS = (120, 240, 480, 960)
