"""What the steps of a compiled run released, in order, for the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

from tf_sparse_dp.accounting.dp_events import FailingDpEvent
from tf_sparse_dp.accounting.events import Noise
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.sampling.counts import whole_number

_NOT_SAMPLED = -1.0


class StepRecord:
    """A ring of fixed length on which every step writes what it released.

    A compiled step cannot call the ledger; it writes the public facts of its
    event here, and Python reads them off later, also while steps go on. A full
    ring refuses further steps (`has_room`), for what cannot be written down
    must not be released.

    Args:
      limit: How many steps fit.
      noise: "gaussian" or "laplace".
      event: Makes an event of the three numbers that a step writes, where the
        first of them is no sampling probability.

    Example:
      >>> record = StepRecord(10)
      >>> for q in (0.1, 0.1, 0.2):
      ...     record.write(True, q, 1.5, 0.0)
      >>> for event, count in record.events():
      ...     print(event.sampling_probability, event.event, count)
      0.1 GaussianDpEvent(noise_multiplier=1.5) 2
      0.2 GaussianDpEvent(noise_multiplier=1.5) 1
    """

    def __init__(
        self,
        limit: int,
        noise: Noise = "gaussian",
        event: Callable[[float, float, float], dp_accounting.DpEvent]
        | None = None,
    ):
        self._limit = whole_number("limit", limit)
        self._noise = noise
        self._event = self._sampled if event is None else event
        self._rows = local_variable(
            np.zeros([self._limit, 3]), name="steps_taken"
        )
        self._count = local_variable(0, name="steps_recorded", dtype=tf.int64)
        self._cleared = local_variable(0, name="steps_cleared", dtype=tf.int64)
        self._listed = 0

    def has_room(self) -> tf.Tensor:
        """Whether one step more fits; a bool tensor."""
        return self._count - self._cleared < self._limit

    def write(
        self,
        taken: Any,
        sampling_probability: Any,
        noise_multiplier: Any,
        failure_probability: Any,
    ) -> None:
        """Writes a step down if it was `taken`; call it where there is room.

        Args:
          taken: Bool tensor, false for a step that was refused.
          sampling_probability: A float64 tensor; None without sampling.
          noise_multiplier: A float64 tensor.
          failure_probability: A float64 tensor; see `FailingDpEvent`.
        """
        if sampling_probability is None:
            sampling_probability = _NOT_SAMPLED
        facts = (sampling_probability, noise_multiplier, failure_probability)
        row = tf.stack([tf.convert_to_tensor(x, tf.float64) for x in facts])
        # A refused step writes to the next free row too, which the next one
        # that is taken writes over; where none is free, what is there.
        place = tf.convert_to_tensor(self._count) % self._limit
        free = self.has_room()
        row = tf.where(free, row, tf.gather(self._rows, place))
        # Of all ways to write a row, one that TPUs have.
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._rows.handle, indices=[place], updates=[row]
        )
        written = tf.convert_to_tensor(taken) & free
        self._count.assign_add(tf.cast(written, tf.int64))

    def events(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """The events of all steps in order; equal ones in a row are one."""
        begin, end = int(self._cleared.numpy()), int(self._count.numpy())
        rows = self._rows.numpy()[np.arange(begin, end) % self._limit]
        self._listed = end
        changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
        starts = [0, *changes.tolist()] if len(rows) else []
        ends = [*starts[1:], len(rows)]
        return [
            (self._event(*rows[start].tolist()), end - start)
            for start, end in zip(starts, ends, strict=bool(starts))
        ]

    def clear(self) -> None:
        """Makes room of what `events` listed last: the ledger has it now."""
        self._cleared.assign(self._listed)

    def _sampled(
        self, probability: float, noise_multiplier: float, failure: float
    ) -> dp_accounting.DpEvent:
        event: dp_accounting.DpEvent
        if self._noise == "laplace":
            event = dp_accounting.LaplaceDpEvent(noise_multiplier)
        else:
            event = dp_accounting.GaussianDpEvent(noise_multiplier)
        if probability != _NOT_SAMPLED:
            event = dp_accounting.PoissonSampledDpEvent(probability, event)
        return FailingDpEvent(event, failure) if failure else event
