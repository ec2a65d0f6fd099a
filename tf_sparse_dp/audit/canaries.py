"""Canaries for a user's own model: two lines around its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_sparse_dp.audit.canary_examples import (
    Examples,
    checked_ids,
    flipped_coins,
    put_label,
    unused_ids,
)
from tf_sparse_dp.audit.canary_rows import (
    ExampleGradients,
    OwnRows,
    count_moved,
    own_rows,
    row_scores,
)
from tf_sparse_dp.audit.feature_tables import FeatureTables
from tf_sparse_dp.audit.lower_bound import checked_share
from tf_sparse_dp.audit.one_run import one_run
from tf_sparse_dp.audit.report import AuditReport
from tf_sparse_dp.optimizers.wrapper import PrivateWrapper
from tf_sparse_dp.sampling.counts import whole_number

# The largest weight that half precision holds.
_LARGEST_WEIGHT = 65504.0


class Canaries:
    r"""Examples on rows of their own, that show what a trained model tells.

    Each of `count` canaries is an example of the data with ids of its own: rows
    of the tables that nobody else looks up, which is where sparse training
    tells most. A fair coin, of the operating system's, decides whether it is
    in. After training, `report` guesses the coins from how far these rows
    moved to where the canary would push them, and bounds epsilon from below
    (`one_run`).

    **Which guarantee is tested.** Every canary is an example of its own,
    hence a unit of its own, and adds one row to the data *whether it is in or
    not*: out, its weight is zero, and the optimizer gives it no influence. So
    the number of rows is n + `count` in all cases and public: make sampling
    and plan for that number. For `EpochSampling` this is the zero-out relation
    of its plan. For `PoissonSampling` it is adding or removing one, exactly:
    every row is drawn by a coin of its own with probability q =
    batch_size/num_examples, which is a public number and the same with and
    without the canary, and a drawn row of weight zero is padding. (Only that
    a batch overflows may depend on it, which the plan charges to delta.) For
    `UserSampling` every canary has to be a user of its own: see `user_ids`.

    **An audit is a run by itself.** Canaries teach the model nonsense: train
    the model that you release without them. The data are used once more, so
    do not release an audited model beside the other one, unless both are paid
    for. Nothing that the report says is private.

    Args:
      model: A compiled model that has its variables, before training.
      features: What holds the ids: a key of the features, a place in their
        tuple, or a column of their array; or a list of these, each with a
        table of its own. None where x is one array of ids.
      count: How many canaries. The largest bound that can be shown grows with
        their number, see docs/audit.md.
      ids: For each canary an id that the data do not use (a vector; for several
        features a mapping from each to one). By default the last rows of
        the table that the data do not use in this feature.
      label: The label of all canaries; by default that of a random example,
        as are all features but the named ones. Labels that the model finds
        unlikely push harder.
      weight: Sample weight of canaries that are in. Large weights make large
        gradients, which are clipped to `clip_norm` then: what the guarantee is
        about is the largest influence that one example can have.
      seed: For tests only: makes coins and examples repeatable.

    Raises:
      TypeError, ValueError: An argument is not what is described above.

    Example:
      >>> import tensorflow as tf
      >>> import tf_sparse_dp as tsdp
      >>> model = tf.keras.Sequential(
      ...     [
      ...         tf.keras.Input((1,), dtype="int32"),
      ...         tf.keras.layers.Embedding(300, 4),
      ...         tf.keras.layers.Flatten(),
      ...         tf.keras.layers.Dense(1, activation="sigmoid"),
      ...     ]
      ... )
      >>> sampling = tsdp.EpochSampling(
      ...     num_examples=300, batch_size=300, epochs=1
      ... )
      >>> plan = tsdp.PrivacyPlan(epsilon=4.0, delta=1e-5, sampling=sampling)
      >>> model.compile(
      ...     tsdp.DPSparseOptimizer(tf.keras.optimizers.SGD(1.0), plan),
      ...     loss="binary_crossentropy",
      ... )
      >>> users = np.arange(100).reshape(100, 1)
      >>> clicks = np.ones((100, 1), "float32")
      >>> canaries = tsdp.audit.Canaries(model, count=200)
      >>> data = canaries.add_to((users, clicks))
      >>> history = model.fit(
      ...     sampling.dataset(data),
      ...     callbacks=[tsdp.PrivacyBudget()],
      ...     verbose=0,
      ... )
      >>> round(canaries.report().stated_epsilon, 2)
      4.0

    Reference: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
    Training Run" (2023).
    """

    def __init__(
        self,
        model: Any,
        features: Any = None,
        *,
        count: int = 1000,
        ids: Any = None,
        label: Any = None,
        weight: float = 1000.0,
        seed: int | None = None,
    ):
        if not getattr(model, "built", False) or not model.trainable_variables:
            raise ValueError(
                f"The model {getattr(model, 'name', model)!r} has no variables "
                "yet, expected one that can be looked at before training. "
                "Give it an Input, or call it on some examples first."
            )
        self.count = whole_number("count", count)
        if not 0 < weight <= _LARGEST_WEIGHT:
            raise ValueError(
                f"weight is {weight!r}, expected a number above 0 and up to "
                f"{_LARGEST_WEIGHT:g}, which half precision holds."
            )
        self._model = model
        self._features = (
            list(features)
            if isinstance(features, (list, tuple))
            else [features]
        )
        if not self._features:
            raise ValueError(
                f"features is {features!r}, expected at least one: what holds "
                "the ids on whose rows canaries shall be alone. Leave it out "
                "where x is one array of ids."
            )
        if ids is not None and not isinstance(ids, Mapping):
            if len(self._features) > 1:
                raise TypeError(
                    f"ids is a {type(ids).__name__}, expected a mapping from "
                    f"each of the features {self._features} to ids."
                )
            ids = {self._features[0]: ids}
        self._ids = ids or {}
        self._label = label
        self._weight = float(weight)
        self._seed = seed
        self._users = False
        self._included: np.ndarray | None = None
        self._tables: list[OwnRows] = []
        self._shares = np.zeros(self.count)

    @property
    def included(self) -> np.ndarray:
        """Whether each canary is in the data. Keep it from the training."""
        if self._included is None:
            raise ValueError(
                "Canaries have not been added to data yet. Train on "
                "canaries.add_to((features, labels)) first."
            )
        return self._included

    def add_to(self, data: Any) -> tuple[Any, Any, np.ndarray]:
        """The data, then all canaries: those that are out with weight 0.

        To be called once, before training: it keeps what the rows are now, and
        where each canary would push them.

        Args:
          data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, of arrays or of
            dicts and tuples of arrays.

        Returns:
          `(x, y, sample_weight)`, with `count` rows more than before, for
          `sampling.dataset`.

        Raises:
          TypeError, ValueError: The data have no such features, the tables no
            rows that they leave unused, or canaries no rows of their own.
        """
        if self._included is not None:
            raise ValueError(
                "These canaries were added to data already, expected one call: "
                "other coins would decide about the same canaries. Make new "
                "Canaries for another run."
            )
        random = np.random.default_rng(self._seed)
        examples = Examples(data)
        fields = [examples.field(feature) for feature in self._features]
        chosen = np.sort(random.integers(examples.size, size=self.count))
        leaves = examples.taken(chosen)
        if self._label is not None:
            put_label(leaves, self._label)
        weights = np.full(self.count, self._weight, "float16")
        gradients = ExampleGradients(
            self._model, examples.batch(leaves, weights)
        )
        probed = None
        for field in fields:
            ids = self._ids.get(field.feature)
            if ids is None:
                if probed is None:
                    probed = FeatureTables(self._model, gradients, examples)
                ids = unused_ids(
                    field.values(examples.leaves),
                    probed.rows_of(field),
                    self.count,
                )
            field.put(leaves, checked_ids(field.feature, ids, self.count))
        batch = examples.batch(leaves, weights)
        self._tables, self._shares = own_rows(self._model, *gradients.of(batch))
        self._check_own_rows()
        self._included = flipped_coins(self.count, self._seed, random)
        return examples.with_added(
            leaves, np.where(self._included, weights, np.float16(0))
        )

    def user_ids(self, user_ids: Any) -> np.ndarray:
        """The users of all rows, where each canary is a user of its own.

        For `UserSampling`, whose `num_users` has to count canaries.

        Args:
          user_ids: Whose each row of the data is, without canaries.

        Raises:
          ValueError: They are no vector.
        """
        ids = np.asarray(user_ids)
        if ids.ndim != 1:
            raise ValueError(
                f"user_ids has shape {ids.shape}, expected a vector, one for "
                "each row of the data without canaries."
            )
        _, numbers_of_users = np.unique(ids, return_inverse=True)
        first = int(numbers_of_users.max(initial=-1)) + 1
        self._users = True
        return np.concatenate(
            [numbers_of_users.reshape(-1), first + np.arange(self.count)]
        )

    def scores(self, model: Any = None) -> np.ndarray:
        """How far each canary's rows moved to where it would push them."""
        model = self._model if model is None else model
        return row_scores(model, self._tables, self.included.size)

    def report(
        self,
        model: Any = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
    ) -> AuditReport:
        """What the trained model tells of who was in.

        Args:
          model: As it was released; by default the model that was given. One
            that was saved and loaded must have the same variables.
          epsilon: What is claimed; by default what the model's optimizer has
            spent, as its statement says.
          delta: Of the claim; by default the optimizer's.
          confidence: How likely the lower bound holds.

        Raises:
          ValueError: There was no training, nothing is claimed, or canaries
            are no units of their own.
        """
        model = self._model if model is None else model
        stated, at, relation = self._stated(model, epsilon, delta)
        bound = one_run(
            self.scores(model), self.included, delta=at, confidence=confidence
        )
        return AuditReport(
            bound=bound,
            stated_epsilon=stated,
            neighbouring_relation=relation,
            own_share=float(np.median(self._shares)),
            moved=count_moved(model, self._tables, self.count),
        )

    def _stated(
        self, model: Any, epsilon: float | None, delta: float | None
    ) -> tuple[float, float, str]:
        optimizer = getattr(model, "optimizer", None)
        relation = "add_or_remove_one"
        if isinstance(optimizer, PrivateWrapper):
            statement = optimizer.privacy_statement()
            if not statement.compositions and not int(optimizer.iterations):
                raise ValueError(
                    "The model has not been trained since it was made, "
                    "expected a trained one. Fit it to "
                    "sampling.dataset(canaries.add_to((features, labels)))."
                )
            if statement.examples_per_unit > 1 or statement.unit == "user":
                self._check_units(statement.unit)
            relation = statement.neighbouring_relation or relation
            if epsilon is None:
                epsilon = statement.epsilon_spent
            if delta is None:
                delta = statement.delta
        if epsilon is None or delta is None:
            raise ValueError(
                f"epsilon is {epsilon} and delta {delta}, and the model's "
                "optimizer claims nothing; expected a claim to put to the "
                "test. Pass epsilon and delta, or train with a plan."
            )
        if isinstance(epsilon, bool) or not epsilon >= 0:
            raise ValueError(f"epsilon is {epsilon!r}, expected at least 0.")
        return (
            float(epsilon),
            checked_share("delta", delta, zero_allowed=True),
            relation,
        )

    def _check_units(self, unit: str) -> None:
        if unit == "user" and self._users:
            return
        raise ValueError(
            f"The plan protects a {unit} with several examples, expected "
            "canaries that are units of their own. With UserSampling pass "
            "canaries.user_ids(user_ids) to its dataset; other groups cannot "
            "be audited in this way."
        )

    def _check_own_rows(self) -> None:
        owners = [table.canaries for table in self._tables]
        found = np.unique(np.concatenate([*owners, np.zeros(0, np.int64)]))
        # One whose gradient happens to be zero, as behind a ReLU, is a canary
        # about which nothing will be known.
        if found.size < self.count / 2:
            raise ValueError(
                f"{found.size} of {self.count} canaries have a row of a table "
                "of their own with a gradient, expected at least half of them. "
                f"Ids of {self._features} have to lead to different rows: give "
                "ids that a vocabulary knows, or a label with a loss."
            )
