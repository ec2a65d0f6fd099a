"""Programs in StableHLO, and compilers for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

_TRUTHS = re.compile(r'dense<"0x([0-9A-F]+)"> : tensor<([0-9x]+)xi1>')


def compiled_for(
    text: str,
    devices: Sequence[Any],
    compile: Callable[..., Any],
    *,
    in_place: bool = False,
) -> Any:
    """A program for one replica on each of the devices.

    Args:
      text: The program.
      devices: Of a client, or of a topology that is not there.
      compile: That of the client.
      in_place: Whether variables, the last arguments, are written over by the
        results, as the TPU bridge has it.
    """
    options = compiler.get_compile_options(
        num_replicas=len(devices), num_partitions=1, device_assignment=None
    )
    numbers = np.array([[device.id] for device in devices], np.int32)
    options.device_assignment = xla_client.DeviceAssignment.create(numbers)
    with mlir.make_ir_context():
        module = ir.Module.parse(_TRUTHS.sub(_unpacked, text))
        if in_place:
            _write_over(module)
        return compile(module, xla_client.DeviceList(tuple(devices)), options)


def _write_over(module: Any) -> None:
    """Gives the results the memory of as many last arguments."""
    (main,) = (op for op in module.body if op.sym_name.value == "main")
    results = len(main.type.results)
    others = len(main.type.inputs) - results
    index = ir.IntegerType.get_signless(32)
    attributes = [ir.DictAttr.get({})] * others + [
        ir.DictAttr.get(
            {"tf.aliasing_output": ir.IntegerAttr.get(index, place)}
        )
        for place in range(results)
    ]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _unpacked(constant: re.Match[str]) -> str:
    """A constant of truth values with a byte for each, as jax reads them.

    TensorFlow 2.20 writes a bit for each.
    """
    given, shape = constant.groups()
    count = math.prod(map(int, shape.split("x")))
    packed = np.frombuffer(bytes.fromhex(given), np.uint8)
    if len(packed) != -(-count // 8):
        return constant.group()
    values = np.unpackbits(packed, bitorder="little")[:count]
    text = values.tobytes().hex().upper()
    return f'dense<"0x{text}"> : tensor<{shape}xi1>'
