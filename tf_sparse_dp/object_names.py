"""The numbers that Keras gives to the names of what it makes.

A second `Dense` layer is "dense_1", a third "dense_2": names count how many
were made before, in this process. Where that must not be told, counts are put
back to what they were.
"""

from __future__ import annotations

import collections
import sys
from typing import Any, TypeAlias

_KERAS = "keras.src.backend.common.global_state"
_KERAS_COUNTS = "object_name_uids"
_TF_KERAS = "tf_keras.src.backend"

Counts: TypeAlias = "tuple[dict[str, int], dict[Any, dict[str, int]], set[str]]"


def name_counts() -> Counts:
    """How many of each name there are, for Keras 3 and tf-keras, if loaded."""
    keras, tf_keras = sys.modules.get(_KERAS), sys.modules.get(_TF_KERAS)
    own: Any = None
    if keras is not None:
        own = keras.get_global_attribute(_KERAS_COUNTS)
    graphs: dict[Any, dict[str, int]] = {}
    observed: set[str] = set()
    if tf_keras is not None:
        for graph, counts in tf_keras.PER_GRAPH_OBJECT_NAME_UIDS.items():
            graphs[graph] = dict(counts)
        observed = set(tf_keras.OBSERVED_NAMES)
    return dict(own or {}), graphs, observed


def set_name_counts(counts: Counts) -> None:
    """Makes names go on from counts that `name_counts` gave before."""
    own, graphs, observed = counts
    keras, tf_keras = sys.modules.get(_KERAS), sys.modules.get(_TF_KERAS)
    if keras is not None:
        keras.set_global_attribute(
            _KERAS_COUNTS, collections.defaultdict(int, own)
        )
    if tf_keras is not None:
        known = tf_keras.PER_GRAPH_OBJECT_NAME_UIDS
        known.clear()
        for graph, numbers in graphs.items():
            known[graph] = collections.defaultdict(int, numbers)
        tf_keras.OBSERVED_NAMES.clear()
        tf_keras.OBSERVED_NAMES.update(observed)
