"""What a data-parallel policy decides: devices that train by themselves."""

from flax import struct
from jax import Array


@struct.dataclass(kw_only=True)
class ClientDecision:
    """The decision of one round of a data-parallel policy, docs/system-model.md, section 6.

    Attributes:
      samples: ``B_k``, each device's part of its cluster's mini-batch, integers,
        ``[N, K]``; a device without any is left out.
      client_blocks: ``L_c``, encoder blocks on every client, a scalar integer.
      d2e_share: share of the D2E band, ``[N, K]``.
      d2e_power_w: ``[N, K]``; of no effect on a device that is left out.
      whole_model: whether a client holds the decoder too and sends nothing but parameters;
        otherwise the edge server runs the other blocks and the decoder.
    """

    samples: Array
    client_blocks: Array
    d2e_share: Array
    d2e_power_w: Array
    whole_model: bool = struct.field(pytree_node=False)
