"""Results on file.

``datasets`` reads results of any kind. Below it ``realisations`` reads comparisons, sweeps, maps
and closed loops, and ``checkpoints`` training runs and races. ``experiment`` is the storage of all
but the last.
"""
