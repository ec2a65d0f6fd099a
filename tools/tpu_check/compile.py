"""Compiles the programs for TPUs that are not there.

    python -m tools.tpu_check.compile FOLDER

For an environment with jax and libtpu, which is the compiler. Prints what it
says about memory and work; fails if it refuses a program, or if a step needs
more memory than it should.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import sys
import time
from typing import Any

os.environ.update(
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # It compiles, and opens no device.
    JAX_PLATFORMS="cpu",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_LOG_DIR="disabled",
    TPU_MIN_LOG_LEVEL="3",
    TPU_SKIP_MDS_QUERY="1",  # Nobody to ask which TPU this is.
    TPU_STDERR_LOG_LEVEL="3",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
)

from jax.experimental import topologies

from tools.tpu_check.programs import compiled_for

JOBS = 2  # A compiler keeps little more than one core busy.
_MEGABYTE = 1e6


def main(folder: pathlib.Path) -> int:
    """Gives the number of programs that failed."""
    jobs = [
        (path, topology)
        # The largest first: those take longest.
        for name in ("large", "noise")
        for path in sorted(folder.glob(f"*/{name}.mlir"))
        for topology in _facts(path)["topologies"][name]
    ]
    print("program, table, chips: temporaries, arguments, FLOPs of a step")
    spawning = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(JOBS, spawning) as pool:
        running = [pool.submit(compiled, *job) for job in jobs]
        failures = 0
        for done in concurrent.futures.as_completed(running):
            passed, told = done.result()
            failures += not passed
            print(told, flush=True)
    return failures


def _facts(path: pathlib.Path) -> Any:
    return json.loads(path.with_name("facts.json").read_text())


def compiled(path: pathlib.Path, topology: str) -> tuple[bool, str]:
    """Compiles a program; whether it is in order, and a line about it."""
    start = time.monotonic()
    facts = _facts(path)
    replicas = facts["replicas"]
    name = f"{path.parent.name}, {path.stem}, {topology} x {replicas}"
    description = topologies.get_topology_desc(
        platform="tpu", topology_name=topology
    )
    devices = list(description.devices)[:replicas]
    try:
        program = compiled_for(
            path.read_text(), devices, devices[0].client.compile, in_place=True
        )
    except Exception as error:
        return False, f"FAILED  {name}: {str(error).splitlines()[0]}"
    memory = program.get_compiled_memory_stats()
    temporaries = memory.temp_size_in_bytes / _MEGABYTE
    told = (
        f"{name:44}{temporaries:8,.0f} MB"
        f"{memory.argument_size_in_bytes / _MEGABYTE:8,.0f} MB"
        f"{program.cost_analysis()['flops']:10.1e}"
        f"  ({time.monotonic() - start:.0f} s)"
    )
    most = facts["temporaries"]
    if most is not None and temporaries > most:
        return False, f"FAILED  {told}: expected at most {most:,.0f} MB"
    return True, told


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
