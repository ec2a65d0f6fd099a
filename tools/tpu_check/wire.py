"""What the replicas of a program send each other."""

from __future__ import annotations

import math
import re

_SENDS = re.compile(
    r"stablehlo\.(all_reduce|all_gather|all_to_all|reduce_scatter"
    r"|collective_permute|collective_broadcast)\b"
)
_OPERANDS = re.compile(r": \((tensor<[^)]*)\) -> ")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)[a-z]+(\d+)")


def bytes_sent(program: str) -> int:
    """Bytes of the operands of all operations in which replicas take part.

    Of one replica, in one step.

    Example:
      >>> bytes_sent('''
      ...   %1 = "stablehlo.all_reduce"(%0) ({
      ...     %3 = stablehlo.add %a, %b : tensor<f32>
      ...   }) : (tensor<4x3xf32>) -> tensor<4x3xf32>
      ... ''')
      48
    """
    sent = 0
    for operation in _SENDS.finditer(program):
        operands = _OPERANDS.search(program, operation.end())
        if operands is None:
            raise ValueError(f"{operation.group()} has no operands.")
        for shape, bits in _TENSOR.findall(operands.group(1)):
            entries = math.prod(int(n) for n in shape.split("x") if n)
            sent += entries * -(-int(bits) // 8)
    return sent
