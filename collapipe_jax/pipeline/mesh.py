"""The devices of a pipeline: a mesh of clusters by stages, on one host or several."""

import math

import jax
from jax.sharding import AxisType, Mesh

from collapipe_jax.errors import InputError

CLUSTER, STAGE = "cluster", "stage"


def make_pipeline_mesh(clusters: int, stages: int) -> Mesh:
    """A mesh ``[N, K]`` with axes ``cluster`` and ``stage`` on the first devices of all hosts.

    ``jax.devices()`` has one order on all hosts, so the same call builds the same mesh on each.
    The stage axis runs fastest: neighbours in a pipeline are neighbours on a host.

    Raises:
      InputError: if there are fewer devices than the mesh needs.
    """
    shape, devices = (clusters, stages), jax.devices()
    count = math.prod(shape)
    if min(shape) < 1 or count > len(devices):
        problem = f"does not fit the {len(devices)} devices there are"
        remedy = "Give sizes from 1 on whose product is at most that"
        raise InputError("mesh", shape, problem, remedy)
    return jax.make_mesh(
        shape, (CLUSTER, STAGE), axis_types=(AxisType.Auto,) * 2, devices=devices[:count]
    )


def check_mesh(mesh: Mesh | None, clusters: int, stages: int) -> None:
    """Refuse, by an ``InputError``, a mesh that is missing or of other sizes than the pipeline."""
    shape = None if mesh is None else dict(mesh.shape)
    if shape != {CLUSTER: clusters, STAGE: stages}:
        problem = f"is not one of {clusters} clusters by {stages} stages"
        raise InputError("mesh", shape, problem, f"Give make_pipeline_mesh({clusters}, {stages})")
