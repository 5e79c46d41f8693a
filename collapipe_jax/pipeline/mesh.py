"""The devices of a pipeline: a mesh of clusters by stages, on one host or many."""

import math

import jax
from jax.sharding import AxisType, Mesh

from collapipe_jax.errors import InputError

CLUSTER, STAGE = "cluster", "stage"


def make_pipeline_mesh(clusters: int, stages: int) -> Mesh:
    """A mesh with axes ``cluster`` and ``stage`` on the first devices of all processes.

    ``jax.devices()`` counts the devices of every process after ``jax.distributed.initialize``,
    in one order on all of them, so the same call builds the same mesh everywhere. The
    stage axis runs fastest: neighbours in a pipeline are neighbours on a host.

    Args:
      clusters: ``N``, devices along ``cluster``.
      stages: ``K``, devices along ``stage``.

    Returns:
      The mesh ``[N, K]``.

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

    Args:
      mesh: what was given.
      clusters: ``N``.
      stages: ``K``.

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
