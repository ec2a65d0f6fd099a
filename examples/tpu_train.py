"""Trains a private recommender on a TPU, as a job that can be resumed.

    python examples/tpu_train.py --tpu local --folder /mnt/disk/job
    python examples/tpu_train.py --tpu none --folder job --steps 100

docs/jobs.md has the way to a TPU VM.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import job
import job_flags
import tensorflow as tf


def strategy_on(tpu: str) -> tf.distribute.Strategy:
    """All cores of a TPU, or the local device."""
    if tpu == "none":
        return tf.distribute.get_strategy()
    # TPUs multiply in bfloat16 otherwise, which makes norms too small; see
    # docs/tpu.md. Before anything is traced.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def main() -> None:
    """Trains, or goes on, and says what came out."""
    flags = job_flags.parser(str(__doc__).partition("\n")[0])
    flags.add_argument(
        "--tpu",
        required=True,
        help="name of the TPU; 'local' on a TPU VM, 'none' for this device",
    )
    options = flags.parse_args()
    job.run(options, strategy_on(options.tpu))


if __name__ == "__main__":
    main()
