"""A local step of a client of a split model, one event after the other."""


def last_event_s(micro_batches) -> float:
    """When the last backward pass ends.

    Every micro-batch has the times of its forward pass, its uplink, both passes at the server, its
    downlink and its backward pass. Each resource serves micro-batches in their order, and the
    device runs all forward passes first.
    """
    device_s, free_s, back_s = 0.0, [0.0, 0.0, 0.0], []
    for forward_s, *between_s, _ in micro_batches:
        device_s += forward_s
        ready_s = device_s
        for resource, time_s in enumerate(between_s):
            ready_s = free_s[resource] = max(free_s[resource], ready_s) + time_s
        back_s.append(ready_s)
    for (*_, backward_s), arrives_s in zip(micro_batches, back_s, strict=True):
        device_s = max(device_s, arrives_s) + backward_s
    return device_s
