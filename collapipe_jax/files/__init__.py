"""Files of networks, decisions and results.

``datasets`` reads results of any kind. Below it ``realisations`` reads comparisons, sweeps, maps
and closed loops, ``studies`` races and studies, and ``checkpoints`` training runs. ``results`` is
the storage of all but the last. ``documents`` holds networks, decisions and costs as JSON.
"""
