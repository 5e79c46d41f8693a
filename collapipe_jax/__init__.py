"""Collaborative pipeline training of Transformers over a simulated wireless edge network.

Axis letters, used for every shape in the package:

====== =====================================================
``R``  realisations of the network
``N``  clusters, each one control unit with its devices
``K``  devices of a cluster
``L``  encoder blocks
``M``  micro-batches of a mini-batch
``B``  samples of a mini-batch
``S``  stages of a pipeline
``H``  local steps of a round
====== =====================================================

Arrays over the nodes of a cluster have ``K + 1`` entries: node 0 is the control
unit, nodes ``1..K`` are the devices. Shapes are unbatched unless said otherwise:
every function treats one realisation, and ``jax.vmap`` makes it many. Quantities
are in SI units on a linear scale; equation numbers refer to
``docs/system-model.md``.
"""
