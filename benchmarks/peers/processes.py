"""Runs an environment's process within limits of time and memory.

A contender that hangs or takes all memory is stopped, and what it did until
then is kept.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from benchmarks.peers import data
from benchmarks.peers.contenders import Framework

ROOT = pathlib.Path(__file__).parents[2]
POLL_SECONDS = 0.1


def available() -> float:
    """Megabytes that the machine has to give."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return 1024 * int(line.split()[1]) / 1e6
    raise RuntimeError("MemAvailable is not in /proc/meminfo")


def python_of(framework: Framework) -> str:
    """The interpreter of a framework's environment."""
    if framework.lane is None:
        return sys.executable
    return str(ROOT / ".lanes" / framework.lane / "bin" / "python")


def _resident(process: int) -> float:
    """Megabytes of a process; 0 when it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{process}/status").read_text().split("\n")
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1]) / 1e6
    return 0.0


def run(
    framework: Framework,
    setting: data.Setting,
    *task: str,
    seconds: float,
    megabytes: float,
) -> tuple[list[dict[str, Any]], str | None]:
    """What a process said, and why it failed if it did.

    Args:
      framework: Whose environment.
      setting: Of which model.
      *task: What it shall do.
      seconds: It may be silent this long.
      megabytes: It may have this much resident memory.
    """
    command = [python_of(framework), "-m", framework.module]
    command += ["--model", setting.model, "--rows", str(setting.rows), *task]
    said: list[dict[str, Any]] = []
    heard = time.monotonic()
    stopped = None
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

        def listen() -> None:
            nonlocal heard
            for line in process.stdout or ():
                if line.startswith("{"):
                    said.append(json.loads(line))
                    heard = time.monotonic()

        listener = threading.Thread(target=listen)
        listener.start()
        while process.poll() is None:
            if time.monotonic() - heard > seconds:
                stopped = f"no {_next(said)} within {seconds:.0f} s"
            elif _resident(process.pid) > megabytes:
                stopped = f"more than {megabytes / 1000:.0f} GB of memory"
            if stopped:
                process.kill()
                process.wait()
            time.sleep(POLL_SECONDS)
        listener.join()
        errors.seek(0)
        lines = errors.read().strip().split("\n")
    if stopped is None and process.returncode:
        stopped = lines[-1][:200] or f"ended with {process.returncode}"
    return said, stopped


def _next(said: list[dict[str, Any]]) -> str:
    """What it was about to do."""
    after = {"set up": "first step", "first step": "second step"}
    return after.get(said[-1]["phase"], "answer") if said else "set-up"
