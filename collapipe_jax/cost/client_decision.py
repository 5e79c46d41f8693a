"""What a data-parallel policy decides: devices that train by themselves."""

from jax import Array

from collapipe_jax.quantity import Struct, quantity


class ClientDecision(Struct):
    """The decision of one round of a data-parallel policy, docs/system-model.md, section 6."""

    samples: Array = quantity(
        "part of the cluster's mini-batch; a device without any is left out",
        "B_k",
        "NK",
        whole=True,
    )
    client_blocks: Array = quantity("encoder blocks on every client", "L_c", whole=True)
    d2e_share: Array = quantity("share of the D2E band", shape="NK")
    d2e_power_w: Array = quantity("of no effect on a device that is left out", shape="NK")
    whole_model: bool = quantity(
        "whether a client holds the decoder too and sends nothing but parameters; otherwise the "
        "edge server runs the other blocks and the decoder",
        static=True,
    )
