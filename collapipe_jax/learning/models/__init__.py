"""Models: the only place that knows Flax.

Arguments that recur in this package:

- ``params``: nested dictionaries of arrays. A model has ``{"embedding", "encoder", "decoder"}``,
  the parts of the control unit, of the devices, and of the edge server.
- ``config``: sizes, hashable and so static under jit.
- ``x``: activations ``[B, S, h]``; ``mask``: ``[B, S]``, True on real tokens.
- ``keys``: ``[B]`` random keys of the examples (``example_keys``), or None for no dropout.
"""
