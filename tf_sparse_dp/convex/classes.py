"""The two classes of a classifier: named beforehand, or read off the labels."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from sklearn.utils.multiclass import (
    check_classification_targets,
    type_of_target,
)

from tf_sparse_dp.convex.losses import Array


def read_off(labels: Array) -> Array:
    """The two classes that occur; with the errors that scikit-learn expects.

    Raises:
      ValueError: Others than two occur, or labels cannot be compared.
    """
    _sorted_classes("Labels", labels)
    check_classification_targets(labels)
    kind = type_of_target(labels)
    if kind not in ("binary", "unknown"):
        raise ValueError(
            "Only binary classification is supported. The type of the "
            f"target is {kind}."
        )
    found = np.unique(labels)
    if len(found) != 2:
        raise ValueError(
            f"Labels of {len(found)} class were given; expected two classes. "
            "If the other one just does not occur, name both: classes=[...]."
        )
    return found


def named(classes: Any, labels: Array) -> Array:
    """The two classes as named, smaller first.

    Raises:
      ValueError: Not two are named, or a label is of neither. Shows up to
        three such labels, and how many there are.
    """
    known = _sorted_classes("classes", classes)
    if len(known) != 2:
        raise ValueError(
            f"classes={classes!r} was given, {len(known)} different classes; "
            "expected two: this is a binary classifier."
        )
    # By comparison: `isin` takes the number 1 for the string "1".
    other = np.ones(len(labels), bool)
    for name in known:
        other &= labels != name
    if other.any():
        shown = list(dict.fromkeys(labels[other].tolist()))
        more = ", ..." if len(shown) > 3 else ""
        raise ValueError(
            f"Labels of no class were given, in {other.sum()} of {len(labels)} "
            f"rows: {', '.join(map(repr, shown[:3]))}{more}; expected those of "
            f"classes={classes!r} only, of the same type."
        )
    return known


def _sorted_classes(name: str, values: Any) -> Array:
    try:
        return np.unique(values)
    except TypeError as error:  # None, or other things without an order.
        kinds = collections.Counter(type(value).__name__ for value in values)
        counts = ", ".join(f"{kinds[kind]} of {kind}" for kind in kinds)
        raise ValueError(
            f"{name} of several types, or of one without an order, were "
            f"given: {counts}; expected one type, such as str or int. Drop "
            "rows without a label beforehand, row by row."
        ) from error
