"""Metrics that a training run has written."""

import json


def read_metrics(workdir):
    """One dictionary a round."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
