import jax
import numpy as np
import pytest
from support.compiled import in_numpy

from collapipe_jax.edge.network import devices
from collapipe_jax.edge.network.devices import DEVICE_PROFILES, DeviceParams

sample_compute = in_numpy(devices.sample_compute, static_argnums=(2, 3))

NAMES = ("jetson_nano", "jetson_tx2", "jetson_xavier_nx")
PARAMS = DeviceParams(
    control_unit="jetson_orin_nano",
    kinds=NAMES,
    utilisation=0.3,
    memory_share=0.6,
    es_flops_per_s=1e13,
    es_memory_bytes=8e10,
    block_overhead_s=1e-3,
    link_overhead_s=2e-3,
    idle_power_w=0.5,
    receive_power_w=0.0,
)


@pytest.mark.parametrize(
    ("name", "peak", "power_w", "memory_gib"),
    [
        ("jetson_nano", 0.236e12, 10, 4),
        ("jetson_tx2", 0.67e12, 15, 8),
        ("jetson_xavier_nx", 0.85e12, 15, 8),
        ("jetson_orin_nano", 1.28e12, 15, 8),
    ],
)
def test_the_catalogue_against_the_data_sheets(name, peak, power_w, memory_gib):
    profile = DEVICE_PROFILES[name]
    assert profile.peak_flops_per_s == pytest.approx(peak, rel=0.01)
    assert profile.power_w == power_w
    assert profile.memory_bytes == memory_gib * 2**30


def test_every_node_is_a_whole_device_of_the_catalogue():
    compute = sample_compute(jax.random.key(0), PARAMS, 3, 5)
    assert compute.flops_per_s.shape == compute.joules_per_flop.shape == (3, 6)
    assert compute.memory_bytes.shape == (3, 5)
    kinds = {}
    for name in (*NAMES, "jetson_orin_nano"):
        profile = DEVICE_PROFILES[name]
        speed = 0.3 * profile.peak_flops_per_s
        kinds[round(speed / 1e9)] = profile.power_w / speed, 0.6 * profile.memory_bytes
    for n, i in np.ndindex(3, 6):
        joules, memory = kinds[round(float(compute.flops_per_s[n, i]) / 1e9)]
        assert compute.joules_per_flop[n, i] == pytest.approx(joules, rel=1e-5)
        if i:
            assert compute.memory_bytes[n, i - 1] == pytest.approx(memory, rel=1e-5)
    orin = 0.3 * DEVICE_PROFILES["jetson_orin_nano"].peak_flops_per_s
    np.testing.assert_allclose(compute.flops_per_s[:, 0], orin, 1e-6)
    assert (compute.es_flops_per_s, compute.block_overhead_s) == pytest.approx((1e13, 1e-3))
    assert compute.link_overhead_s == pytest.approx(2e-3)


def test_devices_are_drawn_uniformly_and_never_the_control_unit_s_kind():
    compute = sample_compute(jax.random.key(1), PARAMS, 100, 60)
    speed = np.asarray(compute.flops_per_s[:, 1:])
    _, counts = np.unique(speed, return_counts=True)
    assert len(counts) == 3
    np.testing.assert_allclose(counts / speed.size, 1 / 3, atol=0.03)
