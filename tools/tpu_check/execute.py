"""Runs the programs on a CPU, and compares what they give.

    python -m tools.tpu_check.execute FOLDER

For an environment with jax. XLA compiles for the CPU what was lowered for TPUs,
and runs it on as many virtual devices as there are replicas.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tools.tpu_check.programs import compiled_for
from tools.tpu_check.verdicts import check_copies, check_noise, check_weights


def main(folder: pathlib.Path) -> int:
    """Gives the number of cases that failed."""
    failures = 0
    for case in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            print(f"ran {case.name}: {check_case(case)}", flush=True)
        except Exception as error:
            failures += 1
            print(f"FAILED  {case.name}: {type(error).__name__}: {error}")
    return failures


def check_case(folder: pathlib.Path) -> str:
    """Compares a case's programs with the ordinary steps."""
    facts = json.loads((folder / "facts.json").read_text())
    told = ["1 replica" if facts["replicas"] == 1 else "replicas are equal"]
    without = None
    if (folder / "exact.mlir").exists():
        without = check_run(folder / "exact")
        told.append("equal to one device without noise")
    noisy = check_run(folder / "noise")
    told.append("and with noise of the same key")
    stddev = facts["stddev"]
    if stddev is not None and without is not None:
        ratio = check_noise(_differences(noisy, without), stddev)
        told.append(f"noise {ratio:.3f} of what it should be")
    if (folder / "own_noise.mlir").exists() and without is not None:
        _check_controls(folder, without, stddev)
        told.append("replicas with noise of their own are found")
    return ", ".join(told)


def check_run(path: pathlib.Path) -> list[np.ndarray]:
    """Runs a program; gives the model's weights then.

    Raises:
      ValueError: If they are not as expected.
    """
    data = np.load(path.with_suffix(".npz"))
    ordinary = np.load(path.with_name(f"{path.name}_expected.npz"))
    found = _run(path, data)
    check_copies([found[place] for place in data["equal"]])
    weights = [found[place][0] for place in data["trained"]]
    before = [data[f"variable{place}"] for place in data["trained"]]
    check_weights(weights, _numbered(ordinary, "arr_"), before)
    return weights


def _check_controls(
    folder: pathlib.Path, without: list[np.ndarray], stddev: float
) -> None:
    """Lets replicas have noise of their own, which has to be found.

    Raises:
      ValueError: If it is not.
    """
    # Each adds noise to its sum: copies are equal, the noise twice as large.
    data = np.load(folder / "own_noise.npz")
    found = _run(folder / "own_noise", data)
    check_copies([found[place] for place in data["equal"]])
    noisy = [found[place][0] for place in data["trained"]]
    if not _is_refused(check_noise, _differences(noisy, without), stddev):
        raise ValueError("noise that each replica adds was taken for right")
    # Each has a key of its own: they compare them, and none takes the step.
    data = np.load(folder / "noise.npz")
    found = _run(folder / "noise", data, own=int(data["root"]))
    for place in data["trained"]:
        if any(np.any(x != data[f"variable{place}"]) for x in found[place]):
            raise ValueError("replicas with keys of their own took a step")


def _is_refused(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return True
    return False


def _differences(
    noisy: Sequence[np.ndarray], without: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Noise of every entry; the first is the table, which may lack some."""
    return [a - b for a, b in zip(noisy[1:], without[1:], strict=True)]


def _run(
    path: pathlib.Path, data: Any, own: int | None = None
) -> list[list[np.ndarray]]:
    """For each variable, what each replica holds after a step.

    Args:
      path: Of the program.
      data: Its arguments.
      own: A variable of integers that is to differ between replicas.
    """
    variables = _numbered(data, "variable")
    arguments = []
    replicas = int(data["replicas"])
    for place in range(replicas):
        held = list(variables)
        if own is not None:
            held[own] = held[own] + place
        arguments.append([*_numbered(data, f"value{place}_"), *held])
    return run(path.with_suffix(".mlir").read_text(), arguments)


def run(
    text: str, arguments: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    """What a program gives; for each result, that of every replica."""
    devices = jax.devices()[: len(arguments)]
    program = compiled_for(text, devices, devices[0].client.compile_and_load)
    mesh = Mesh(np.array(devices), ("replicas",))

    def placed(copies: Sequence[np.ndarray]) -> jax.Array:
        """As one array, of which each device has a part."""
        shape, axes = copies[0].shape, PartitionSpec()
        if shape:
            shape = (len(copies) * shape[0], *shape[1:])
            axes = PartitionSpec("replicas")
        return jax.make_array_from_single_device_arrays(
            shape,
            NamedSharding(mesh, axes),
            [
                jax.device_put(copy, device)
                for copy, device in zip(copies, devices, strict=True)
            ],
        )

    given: Any = [placed(copies) for copies in zip(*arguments, strict=True)]
    results = program.execute_sharded(given)
    return [
        [np.asarray(copy) for copy in copies]
        for copies in results.disassemble_into_single_device_arrays()
    ]


def _numbered(data: Any, name: str) -> list[np.ndarray]:
    count = sum(key.startswith(name) for key in data.files)
    return [data[f"{name}{i}"] for i in range(count)]


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main(pathlib.Path(sys.argv[1])))
