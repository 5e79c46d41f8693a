"""Shapes of a round's arrays: nodes first, ``J = K + 1``, clusters next, then any batch axes.

A single network has no batch axes. A problem with batch axes is one whose every leaf ends
with them; they broadcast against those of its partition.
"""

from jaxtyping import Array, Bool, Float, Num

PerNode = Float[Array, "J N *batch"]
PerDevice = Float[Array, "K N *batch"]
PerCluster = Float[Array, "N *batch"]
PerRound = Float[Array, "*batch"]
PerHop = Float[Array, "2 J N *batch"]
"""Of a hop's forward and backward message, by the node where the hop starts."""
PerMove = Float[Array, "2 K N *batch"]
"""Of parameters, collected from a device and distributed to it."""
CrossGain = Float[Array, "J N J N *#batch"]
ActiveNodes = Bool[Array, "J N *batch"]
Segments = Num[Array, "N K *batch"]
MicroBatches = Num[Array, "N *batch"]
Broadcast = Float[Array, "..."]
"""Of any shape that broadcasts with the others'."""
