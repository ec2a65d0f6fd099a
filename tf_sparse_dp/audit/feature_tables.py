"""Which table a feature's ids are row numbers of."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_sparse_dp.audit.canary_examples import Examples, Field
from tf_sparse_dp.audit.canary_rows import ExampleGradients

# Examples that show which table a feature looks up.
_PROBES = 64


class FeatureTables:
    """Which tables features look up, as some examples of the data show.

    Args:
      model: Whose tables.
      gradients: Of the model's step.
      examples: The data.
    """

    def __init__(
        self, model: Any, gradients: ExampleGradients, examples: Examples
    ):
        self._model = model
        rows = np.unique(
            np.linspace(0, examples.size - 1, _PROBES).astype(np.int64)
        )
        self._leaves = examples.taken(rows)
        weights = np.ones(rows.size, "float16")
        batch = examples.batch(self._leaves, weights)
        self._lookups, _ = gradients.of(batch)

    def rows_of(self, field: Field) -> int:
        """How many rows the smallest table has that the feature's ids name.

        Raises:
          ValueError: No table has rows of these numbers.
        """
        values = field.values(self._leaves)
        sizes = []
        for table in self._lookups:
            looked_up = set(
                zip(table.examples.tolist(), table.rows.tolist(), strict=True)
            )
            if values.dtype.kind in "iu" and all(
                (example, int(value)) in looked_up
                for example, row in enumerate(values)
                for value in row
            ):
                variable = self._model.trainable_variables[table.place]
                sizes.append(int(variable.shape[0]))
        if not sizes:
            raise ValueError(
                f"Values of {field.feature!r}, of type {values.dtype}, are not "
                "the numbers of rows that examples look up in a table; "
                "expected ids that are, to find some that are unused. Pass "
                "ids=, one for each canary that the data do not use."
            )
        return min(sizes)
