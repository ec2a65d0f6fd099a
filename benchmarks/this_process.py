"""What steps take of this process: time and memory. Needs no framework."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any


def timed(step: Callable[[], Any], count: int) -> tuple[float, float]:
    """Milliseconds a step: by the clock, and of CPU time of all threads."""
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return 1e3 * clock / count, 1e3 * cpu / count


def resident(peak: bool = False) -> int:
    """Bytes of memory, now or at most since `forget_peak`."""
    wanted = "VmHWM" if peak else "VmRSS"
    with open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(wanted):
                return 1024 * int(line.split()[1])
    raise RuntimeError(f"{wanted} is not in /proc/self/status")


def forget_peak() -> None:
    """Starts the peak anew from what is resident now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
