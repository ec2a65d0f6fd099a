"""TensorFlow's own TPUStrategy, on a machine that has no TPU.

The strategy asks a cluster resolver what TPUs there are, and gets an answer
that is made up. Whatever it then traces is what it would trace on the host of
such a TPU. Variables say that they are on a TPU, and are on the CPU: they can
be read and assigned to, but a step cannot be run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.tpu import topology_pb2
from tensorflow.python.client import session
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.tpu import (
    device_assignment,
    topology,
    tpu_system_metadata,
)

_MESHES = {1: (1, 1, 1, 1), 4: (2, 2, 1, 1)}  # By number of replicas.
_DEVICE = "/job:localhost/replica:0/task:0/device:{}:{}"


class _Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """Knows of the TPUs that it is told of."""

    def __init__(self, metadata: Any, hardware: Any):
        super().__init__(tf.train.ClusterSpec({}))
        self._metadata = metadata
        self.tpu_hardware_feature = hardware

    def get_tpu_system_metadata(self) -> Any:
        return self._metadata


def tpu_strategy_of(
    replicas: int, embedding: str = "UNSUPPORTED"
) -> tf.distribute.Strategy:
    """A strategy for so many cores of one host.

    Args:
      replicas: The number of cores.
      embedding: The embedding hardware that they have: "UNSUPPORTED" for none,
        "V1", or "V2" for SparseCores.

    Raises:
      ValueError: If TPUs of so many cores are not known here.
    """
    if replicas not in _MESHES:
        raise ValueError(
            f"replicas={replicas} was given; expected one of {list(_MESHES)}."
        )
    mesh = _MESHES[replicas]
    cores = topology.Topology(
        mesh_shape=mesh,
        device_coordinates=np.array(
            [[[x, y, 0, 0] for y in range(mesh[1]) for x in range(mesh[0])]],
            np.int32,
        ),
    )
    kinds = [("CPU", 0), ("TPU_SYSTEM", 0)]
    kinds += [("TPU", core) for core in range(replicas)]
    metadata = tpu_system_metadata.TPUSystemMetadata(
        num_cores=replicas,
        num_hosts=1,
        num_of_cores_per_host=replicas,
        topology=cores,
        devices=[
            session._DeviceAttributes(_DEVICE.format(kind, place), kind, 0, 0)
            for kind, place in kinds
        ],
    )
    features = topology_pb2.TPUHardwareFeature
    hardware = features(
        embedding_feature=features.EmbeddingFeature.Value(embedding),
        num_embedding_devices_per_chip=4,
    )
    tf.config.set_soft_device_placement(True)
    return tpu_strategy.TPUStrategyV2(
        _Resolver(metadata, hardware),
        experimental_device_assignment=device_assignment.device_assignment(
            cores, num_replicas=replicas
        ),
    )
