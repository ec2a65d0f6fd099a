"""Trains a private recommender with several workers, as one job.

On each machine, with TF_CONFIG set as for any MultiWorkerMirroredStrategy and a
folder that all of them see:

    python examples/multi_worker_train.py --folder /shared/job

Or all workers on this machine, started again if one of them dies:

    python examples/multi_worker_train.py --folder job --local-workers 2

See docs/jobs.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if __name__ == "__main__":
    # Keras 3 has no `fit` for several processes; tf-keras has.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import job
import job_flags
import tensorflow as tf


def cluster() -> tuple[int, bool]:
    """The number of workers, and whether this is the first, by TF_CONFIG."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    jobs = config.get("cluster", {})
    workers = sum(len(jobs.get(kind, ())) for kind in ("chief", "worker"))
    task = config.get("task", {"type": "worker", "index": 0})
    first = "chief" if "chief" in jobs else "worker"
    return max(1, workers), (task["type"], task["index"]) == (first, 0)


def free_addresses(number: int) -> list[str]:
    """So many ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        # All at once, or the same might be found twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def start(
    command: Sequence[str], number: int, folder: pathlib.Path
) -> list[subprocess.Popen]:
    """Starts all workers; the first one's output is ours."""
    addresses = free_addresses(number)
    workers = []
    for index in range(number):
        config = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        output = None
        if index:
            output = open(folder / f"worker{index}.log", "a")  # noqa: SIM115
        workers.append(
            subprocess.Popen(
                command,
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=output,
                stderr=output,
            )
        )
    return workers


def wait(workers: Sequence[subprocess.Popen]) -> int:
    """Waits for all of them; ends the others when one fails.

    Returns:
      The exit status of the one that failed first; 0 if none did.
    """
    try:
        while True:
            found = [worker.poll() for worker in workers]
            failed = [status for status in found if status]
            if failed:
                return failed[0]
            if None not in found:
                return 0
            time.sleep(0.1)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(timeout=30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def supervise(
    command: Sequence[str], number: int, restarts: int, folder: pathlib.Path
) -> int:
    """Starts all workers anew when one dies; each time they resume the job.

    Returns:
      The exit status of the last attempt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(restarts + 1)):
        status = wait(start(command, number, folder))
        if status in (0, job.REFUSED):
            return status
        print(f"a worker ended with {status}; {left} restarts left", flush=True)
    return status


def main() -> None:
    """Is a worker, or starts them."""
    flags = job_flags.parser(str(__doc__).partition("\n")[0])
    flags.add_argument(
        "--local-workers",
        type=int,
        default=0,
        help="start so many on this machine; 0 is one worker, by TF_CONFIG",
    )
    flags.add_argument(
        "--restarts",
        type=int,
        default=3,
        help="of all local workers, when one dies",
    )
    options = flags.parse_args()
    if options.local_workers:
        if "TF_CONFIG" in os.environ:
            flags.error("TF_CONFIG is set: leave out --local-workers")
        # Told to end, it ends its workers.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        command = [sys.executable, *sys.argv, "--local-workers=0"]
        raise SystemExit(
            supervise(
                command, options.local_workers, options.restarts, options.folder
            )
        )
    workers, chief = cluster()
    if workers > 1 and hasattr(tf.keras, "__version__"):
        flags.error("Keras 3 has no fit for this: set TF_USE_LEGACY_KERAS=1")
    if workers == 1:
        strategy = tf.distribute.get_strategy()
    else:  # Before anything else of TensorFlow is used.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # TensorFlow's own would let it train on; a checkpoint is kept.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job.run(options, strategy, workers=workers, chief=chief)


if __name__ == "__main__":
    main()
