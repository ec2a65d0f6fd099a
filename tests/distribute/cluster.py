"""Starts processes that train together, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

ROOT = pathlib.Path(__file__).parents[2]


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, all different.

    From below those that the system gives to whoever connects to something,
    and for each process of pytest-xdist from a range of its own: nobody else
    takes them before workers listen, which may be seconds later.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10
    first = 10_000 + 2_000 * own
    found: list[int] = []
    for port in random.SystemRandom().sample(range(first, first + 2_000), 500):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            found.append(port)
        if len(found) == number:
            return found
    raise OSError(f"no {number} free ports from {first} on")


def started(
    number: int, module: str, *arguments: str, output: Sequence[IO[str]]
) -> list[subprocess.Popen[str]]:
    """Workers that run a module; what they print goes to files."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(number)]
    workers = []
    for index in range(number):
        config = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CONFIG": json.dumps(config),
        }
        workers.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=output[index],
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return workers


def run(
    number: int,
    folder: pathlib.Path,
    module: str,
    *arguments: str,
    timeout: float = 900.0,
) -> None:
    """Runs workers to their end; each gets the folder as last argument.

    Raises:
      AssertionError: If one fails, with the end of what it printed.
    """
    paths = [folder / f"worker{index}.log" for index in range(number)]
    files = [path.open("w") for path in paths]
    workers = started(number, module, *arguments, str(folder), output=files)
    try:
        for worker in workers:
            worker.wait(timeout)
    finally:
        stop(workers)
        for file in files:
            file.close()
    ends = [path.read_text()[-2000:] for path in paths]
    assert not any(worker.returncode for worker in workers), "\n".join(ends)


def stop(workers: Sequence[subprocess.Popen[str]]) -> None:
    """Ends what still runs, at once."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait()
