"""Examines many random graphs and counts what came of them."""

from __future__ import annotations

import collections
import dataclasses
import gc
import traceback
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tests.gradients.random_graphs.examination import (
    Examination,
    Finding,
    Subject,
)
from tests.gradients.random_graphs.making import make
from tests.gradients.random_graphs.programs import Program


@dataclasses.dataclass
class Counts:
    """What came of many graphs.

    Graphs with one row are left out of `separable` and `accepted_separable`:
    with a single example there is nothing to tell apart. So are graphs whose
    gradient sees no example, or is not finite.
    """

    graphs: int = 0
    accepted: int = 0
    refused: int = 0
    separable: int = 0
    accepted_separable: int = 0
    looped: int = 0
    mixing: int = 0
    unsound: list[str] = dataclasses.field(default_factory=list)
    crashes: list[str] = dataclasses.field(default_factory=list)
    false_refusals: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )

    def add(self, finding: Finding, rows: int, text: str) -> None:
        self.graphs += 1
        self.accepted += finding.accepted
        self.refused += not finding.accepted
        if finding.problems:
            problems = "\n  ".join(finding.problems)
            self.unsound.append(f"{text}\n  {problems}")
        if rows == 1 or finding.separable is None:
            return
        if not finding.separable:
            self.mixing += 1
            return
        self.separable += 1
        self.looped += finding.looped
        self.accepted_separable += finding.accepted
        if not finding.accepted:
            self.false_refusals[finding.operation] += 1

    def as_dict(self) -> dict[str, Any]:
        """The counts in types that pass from process to process."""
        return {**vars(self), "false_refusals": dict(self.false_refusals)}

    @classmethod
    def total(cls, parts: Iterable[dict[str, Any]]) -> Counts:
        """The sum of counts that are given by `as_dict`."""
        total = cls()
        for part in parts:
            for name, value in part.items():
                if name == "false_refusals":
                    total.false_refusals.update(value)
                else:
                    setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def share(self) -> float:
        """The share of separable graphs that were accepted."""
        return self.accepted_separable / max(1, self.separable)

    def __str__(self) -> str:
        refusals = ", ".join(
            f"{name} {count}"
            for name, count in self.false_refusals.most_common(20)
        )
        return (
            f"{self.graphs} graphs: {self.accepted} accepted, "
            f"{self.refused} refused; {self.mixing} mix examples, "
            f"{self.separable} are separable ({self.looped} equal the loop), "
            f"of which {self.accepted_separable} = {self.share:.1%} accepted; "
            f"{len(self.unsound)} unsound, {len(self.crashes)} crashes\n"
            f"separable but refused: {refusals}"
        )


def subject(program: Program) -> Subject:
    """A program as something to examine."""
    by_shape = program.random.random() < 0.5

    def loss(*inputs: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(inputs[0])[0]
        if program.static and not by_shape:
            rows = program.rows
        return program.replay(rows, inputs)

    return Subject(
        loss,
        program.variables,
        program.specs(),
        program.draw,
        program.rows,
        program.dtype == tf.float64,
        program.tensors,
    )


def examine(seed: int) -> tuple[Finding, Program]:
    """One random graph."""
    program = make(seed)
    return Examination(subject(program), seed).examine(), program


def count(seeds: Iterable[int]) -> Counts:
    """Many random graphs, quickly: graphs this small need no optimizing."""
    counts = Counts()
    tf.get_logger().setLevel("ERROR")  # About functions that retrace.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    try:
        for place, seed in enumerate(seeds):
            try:
                finding, program = examine(seed)
            except Exception:
                counts.crashes.append(f"seed {seed}: {traceback.format_exc()}")
                continue
            counts.add(finding, program.rows, program.describe())
            if place % 50 == 49:
                gc.collect()  # Graphs are full of cycles.
    finally:
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": False}
        )
    return counts
