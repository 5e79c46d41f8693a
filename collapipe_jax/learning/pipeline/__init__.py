"""Pipelines: the encoder executed in segments, with the values and gradients of one scan.

Arguments that recur in this package, besides those of ``models``:

- ``segments``: blocks per device ``[K]``, or ``[N, K]`` for all clusters, with sum L. Devices that
  share one of the mesh are one of ``K`` stages (``slots.fold_stages``). Segments are array values:
  a new partition costs no compilation. A row of zeros is a cluster that does not participate;
  activations pass on unchanged.
- ``slots``: parameters on the devices, every leaf ``[N, K, capacity, ...]``. The static
  ``capacity`` is the most blocks of a device.
- ``micro_batches``: ``M``, a divisor of B, static except where it is decided
  (``execution.Execution``).

What an idle tick carries is NaN, as are buffers before they are written: no result reads them.
"""
