"""Federated learning: erasures, local steps, aggregation, estimates.

Arguments that recur in this package, besides those of ``models`` and ``pipeline``:

- ``weights``: ``w_n [N]``, >= 0; ``participates``: ``[N]`` bool; ``shares``: the weights rescaled
  to sum 1 over the participants, 0 for the others.
- ``micro_batches``: ``M_n [N]``; ``loss_probability``: ``P_n [N]``; array values.
- ``batches``: leaves ``[H, N, B, ...]``; ``batch``: leaves ``[N, B, ...]``.
- ``example_weights``: erasure weights ``e [N, B]``.
"""
