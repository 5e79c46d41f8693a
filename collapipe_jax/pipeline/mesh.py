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
        raise InputError(
            "mesh",
            shape,
            f"does not fit the {len(devices)} devices there are",
            "Give sizes from 1 on whose product is at most that",
        )
    return jax.make_mesh(
        shape, (CLUSTER, STAGE), axis_types=(AxisType.Auto,) * 2, devices=devices[:count]
    )


def check_mesh(mesh: Mesh | None, clusters: int, stages: int) -> None:
    """Refuse a mesh that is missing or of other sizes than the pipeline.

    Raises:
      InputError: as said.
    """
    shape = None if mesh is None else dict(mesh.shape)
    if shape != {CLUSTER: clusters, STAGE: stages}:
        raise InputError(
            "mesh",
            shape,
            f"is not one of {clusters} clusters by {stages} stages",
            f"Give make_pipeline_mesh({clusters}, {stages})",
        )
