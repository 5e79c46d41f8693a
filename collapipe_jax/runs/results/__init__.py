"""Results on file.

``datasets`` reads results of any kind. Below it ``realisations`` reads comparisons, sweeps, maps
and closed loops, ``studies`` races and studies, and ``checkpoints`` training runs. ``experiment``
is the storage of all but the last.
"""
