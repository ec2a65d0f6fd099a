"""Output perturbation as classifier and regressor of scikit-learn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

try:
    from sklearn import base
    from sklearn.utils import validation
    from sklearn.utils.metaestimators import available_if
except ImportError as error:
    raise ImportError(
        "OutputPerturbationClassifier and OutputPerturbationRegressor need "
        "scikit-learn, which is not there. Install it with "
        "pip install 'tf_sparse_dp[convex]'; OutputPerturbation itself needs "
        "scipy only."
    ) from error

from scipy import special

from tf_sparse_dp.accounting import PrivacyFilter
from tf_sparse_dp.convex.classes import named, read_off
from tf_sparse_dp.convex.domains import Domain, Unconstrained
from tf_sparse_dp.convex.losses import Array
from tf_sparse_dp.convex.output_perturbation import OutputPerturbation
from tf_sparse_dp.convex.private_weights import PrivateWeights
from tf_sparse_dp.convex.rows import as_csr


class _Linear(base.BaseEstimator):  # type: ignore[misc]
    """What both have in common."""

    def _release(
        self,
        X: Any,
        labels: Any,
        filter: PrivacyFilter | None,
        not_covered: tuple[str, ...] = (),
    ) -> None:
        fields = self.get_params(deep=False)
        fields.pop("classes", None)
        fields["intercept"] = 1.0 if fields.pop("fit_intercept") else 0.0
        fields["seed"] = fields.pop("random_state")
        fields["domain"] = fields["domain"] or Unconstrained()
        private = OutputPerturbation(**fields).release(X, labels, filter=filter)
        private = dataclasses.replace(
            private, not_covered=(*not_covered, *private.not_covered)
        )
        self.private_weights_ = private
        self.coef_ = private.weights
        self.intercept_ = private.intercept
        self.statement_ = private.description

    def _checked(self, X: Any, *y: Any, reset: bool, **options: Any) -> Any:
        """Data as scikit-learn wants them; sparse tensors are made matrices."""
        if hasattr(X, "dense_shape"):
            X = as_csr(X)
        options |= {"accept_sparse": "csr", "dtype": np.float64}
        if hasattr(validation, "validate_data"):
            return validation.validate_data(self, X, *y, reset=reset, **options)
        return self._validate_data(X, *y, reset=reset, **options)

    def _margins(self, X: Any) -> Array:
        validation.check_is_fitted(self)
        # With what was fitted, whatever parameters were set since.
        private: PrivateWeights = self.private_weights_
        return private.margins(self._checked(X, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        # Fresh noise in every fit; on the few rows of a check it is large.
        tags.non_deterministic = True
        return tags

    def _more_tags(self) -> dict[str, Any]:
        # The same for scikit-learn below 1.6.
        return {
            "non_deterministic": True,
            "poor_score": True,
            "requires_y": True,
            "binary_only": True,
        }


_READ_OFF = (
    "The classes, which were read off the private labels (classes=None): that "
    "these two occur, and no other, is published by classes_ outside of the "
    "guarantee. Name them, classes=[...], to have this covered.",
)


def _is_logistic(estimator: Any) -> bool:
    return bool(estimator.loss == "logistic")


class OutputPerturbationClassifier(base.ClassifierMixin, _Linear):  # type: ignore[misc]
    r"""A private linear classifier for two classes.

    **Guarantee**: that of `OutputPerturbation`, for every `fit`; fitting again
    spends again. `statement_` says what one fit may claim. Rows that are
    predicted are cut to `sparsity` and scaled to `row_norm` as those of `fit`
    are, and are not protected by anything: predictions are post-processing of
    published weights. An error about labels shows some of them.

    Args:
      row_norm: Rows that are longer are scaled to this L2 norm, in `fit` and
        in prediction. Give the norm of typical rows, from public knowledge:
        with a smaller one rows that differ in length alone look the same, and
        noise grows with a larger one.
      classes: The two classes, in any order; public. None to read them off
        the labels, for data in which both are known to occur: the guarantee
        does not cover that, and `statement_` says so.
      fit_intercept: Whether rows get a constant entry of 1.
      random_state: For tests only: makes the noise reproducible, hence not
        private; with a warning.
      Others: as for `OutputPerturbation`; a domain of None is no constraint.

    Attributes:
      coef_: Weights [d].
      intercept_: A number.
      classes_: The two classes, smaller first.
      private_weights_: A `PrivateWeights`.
      statement_: The guarantee in plain words.

    Example:
      >>> import numpy as np
      >>> rows = np.eye(2)[np.arange(2000) % 2]
      >>> labels = np.array(["no", "yes"])[np.arange(2000) % 2]
      >>> model = OutputPerturbationClassifier(classes=["no", "yes"])
      >>> model.fit(rows, labels).predict_proba(rows).shape
      (2000, 2)
    """

    def __init__(
        self,
        *,
        loss: str = "logistic",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        row_norm: float = 1.0,
        sparsity: int | None = None,
        domain: Domain | None = None,
        regularization: float | str = "theorem",
        objective: str = "erm",
        distance: float | None = None,
        initial: Any = None,
        fit_intercept: bool = True,
        classes: Any = None,
        tolerance: float = 0.01,
        random_state: int | None = None,
    ):
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.sparsity = sparsity
        self.domain = domain
        self.regularization = regularization
        self.objective = objective
        self.distance = distance
        self.initial = initial
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.tolerance = tolerance
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, filter: PrivacyFilter | None = None
    ) -> OutputPerturbationClassifier:
        """Spends a budget: that of the filter, if there is one."""
        if self.loss not in ("logistic", "hinge"):
            raise ValueError(
                f"loss={self.loss!r} was given; expected 'logistic' or "
                "'hinge'. For real labels use OutputPerturbationRegressor."
            )
        X, y = self._checked(X, y, reset=True)
        if self.classes is None:
            self.classes_ = read_off(y)
        else:
            self.classes_ = named(self.classes, y)
        self._release(
            X,
            np.where(y == self.classes_[1], 1.0, -1.0),
            filter,
            not_covered=_READ_OFF if self.classes is None else (),
        )
        return self

    def decision_function(self, X: Any) -> Array:
        """Margins; above 0 for the second class."""
        return self._margins(X)

    def predict(self, X: Any) -> Any:
        """The class of every row."""
        second = self._margins(X) > 0
        return self.classes_[second.astype(int)]

    @available_if(_is_logistic)
    def predict_proba(self, X: Any) -> Array:
        """Probabilities [n, 2], for loss="logistic"."""
        second = special.expit(self._margins(X))
        return np.stack([1 - second, second], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags


class OutputPerturbationRegressor(base.RegressorMixin, _Linear):  # type: ignore[misc]
    r"""A private linear regression, robust or with clipped labels.

    **Guarantee**: that of `OutputPerturbation`, for every `fit`; see
    `OutputPerturbationClassifier`. Rows that are predicted are cut and scaled
    as those of `fit` are.

    Args:
      loss: "huber", or "squared" with a bounded domain and `label_bound`.
      row_norm: As for `OutputPerturbationClassifier`: the norm of typical
        rows, from public knowledge. What is predicted for longer rows is what
        is predicted for those of this norm.
      fit_intercept: Whether rows get a constant entry of 1.
      random_state: For tests only: makes the noise reproducible, hence not
        private; with a warning.
      Others: as for `OutputPerturbation`; a domain of None is no constraint.

    Attributes:
      coef_: Weights [d].
      intercept_: A number.
      private_weights_: A `PrivateWeights`.
      statement_: The guarantee in plain words.

    Example:
      >>> import numpy as np
      >>> rows = np.eye(2)[np.arange(2000) % 2]
      >>> model = OutputPerturbationRegressor(epsilon=2.0, delta=0.0)
      >>> model.fit(rows, rows[:, 0]).predict(rows[:3]).shape
      (3,)
    """

    def __init__(
        self,
        *,
        loss: str = "huber",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        row_norm: float = 1.0,
        sparsity: int | None = None,
        domain: Domain | None = None,
        regularization: float | str = "theorem",
        objective: str = "erm",
        distance: float | None = None,
        initial: Any = None,
        fit_intercept: bool = True,
        huber_threshold: float = 1.0,
        label_bound: float | None = None,
        tolerance: float = 0.01,
        random_state: int | None = None,
    ):
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.sparsity = sparsity
        self.domain = domain
        self.regularization = regularization
        self.objective = objective
        self.distance = distance
        self.initial = initial
        self.fit_intercept = fit_intercept
        self.huber_threshold = huber_threshold
        self.label_bound = label_bound
        self.tolerance = tolerance
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, filter: PrivacyFilter | None = None
    ) -> OutputPerturbationRegressor:
        """Spends a budget: that of the filter, if there is one."""
        if self.loss not in ("huber", "squared"):
            raise ValueError(
                f"loss={self.loss!r} was given; expected 'huber' or "
                "'squared'. For classes use OutputPerturbationClassifier."
            )
        X, y = self._checked(X, y, reset=True, y_numeric=True)
        self._release(X, y, filter)
        return self

    def predict(self, X: Any) -> Array:
        """A number for every row."""
        return self._margins(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
