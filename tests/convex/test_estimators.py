"""The classifier and the regressor of scikit-learn's kind."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from tf_sparse_dp import PrivacyWarning, convex

pytestmark = [pytest.mark.once]
# Not in the lanes: scikit-learn is an extra.
pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402


@parametrize_with_checks(
    [
        convex.OutputPerturbationClassifier(),
        convex.OutputPerturbationRegressor(),
    ]
)
def test_conventions(estimator, check) -> None:
    with warnings.catch_warnings():
        # Checks fix random_state, which is for tests.
        warnings.simplefilter("ignore", PrivacyWarning)
        check(estimator)


@pytest.fixture(name="data")
def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 4))
    return rows, np.where(rows @ [1.0, -1.0, 0.5, 0.0] > 0, "yes", "no")


def test_it_classifies(data) -> None:
    rows, labels = data
    model = convex.OutputPerturbationClassifier(
        epsilon=1e3, regularization=0.01, classes=["no", "yes"]
    ).fit(rows, labels)
    assert model.score(rows, labels) > 0.85
    assert model.classes_.tolist() == ["no", "yes"]
    chances = model.predict_proba(rows)
    second = model.decision_function(rows) > 0
    np.testing.assert_array_equal(chances[:, 1] > 0.5, second)
    assert "epsilon = 1000, delta = 1e-06" in model.statement_
    hinge = clone(model).set_params(loss="hinge").fit(rows, labels)
    assert hinge.score(rows, labels) > 0.85
    assert not hasattr(hinge, "predict_proba")


def test_one_class_may_be_missing_if_both_are_named(data) -> None:
    rows, _ = data
    model = convex.OutputPerturbationClassifier(classes=["no", "yes"])
    model.fit(rows, np.full(len(rows), "no"))
    assert model.predict_proba(rows).shape == (2000, 2)
    assert "read off" not in model.statement_


def test_classes_that_are_read_off_are_not_covered(data) -> None:
    statement = convex.OutputPerturbationClassifier().fit(*data).statement_
    beyond = statement.split("Not covered:")[1]
    assert "read off the private labels" in beyond


@pytest.mark.parametrize(
    ("classes", "change", "message"),
    [
        (["a", "no", "yes"], {}, r"classes=\['a', 'no', 'yes'\] was given, 3"),
        (["no"], {}, r"classes=\['no'\] was given, 1"),
        (["no", None], {}, "classes of several types"),
        (["no", "yes"], {7: "perhaps"}, "in 1 of 2000 rows: 'perhaps';"),
        (["no", "yes"], {7: None, 8: 3}, "in 2 of 2000 rows: None, 3;"),
        (["no", "yes"], dict.fromkeys(range(2000), 1), "in 2000 of 2000"),
        (None, {7: None}, "Labels of several types.* 1 of NoneType"),
        (None, dict.fromkeys(range(2000), "no"), "Labels of 1 class"),
        (None, {7: "perhaps"}, "Only binary"),
    ],
)
def test_what_is_wrong_with_classes_is_said(
    data, classes, change, message
) -> None:
    rows, labels = data[0], data[1].astype(object)
    for place, label in change.items():
        labels[place] = label
    model = convex.OutputPerturbationClassifier(classes=classes)
    with pytest.raises(ValueError, match=message):
        model.fit(rows, labels)


def test_the_number_1_is_not_the_string_1(data) -> None:
    rows, labels = data
    model = convex.OutputPerturbationClassifier(classes=["0", "1"])
    with pytest.raises(ValueError, match="in 2000 of 2000 rows"):
        model.fit(rows, (labels == "yes").astype(int))


def test_it_predicts_numbers(data) -> None:
    rows, _ = data
    model = convex.OutputPerturbationRegressor(
        epsilon=1e4, regularization=0.01, row_norm=4.0
    )
    labels = rows @ [0.2, -0.1, 0.0, 0.3] + 0.3
    assert model.fit(rows, labels).score(rows, labels) > 0.7


def test_rows_are_predicted_as_they_were_fitted() -> None:
    """Rows of norm 3 at a row_norm of 1; there is next to no noise.

    Fitted to rows of a third of their length, weights are three times as
    large as those for the rows as they are.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 5))
    rows *= 3 / np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rows @ [0.1, -0.1, 0.05, 0.0, 0.2]
    model = convex.OutputPerturbationRegressor(
        epsilon=1e6, regularization=1e-3
    ).fit(rows, labels)
    assert model.score(rows, labels) > 0.98
    unscaled = rows @ model.coef_ + model.intercept_
    assert 1 - np.var(labels - unscaled) / np.var(labels) < 0
    # With what was fitted, and sparsity as well.
    before = model.predict(rows)
    model.set_params(row_norm=9.0)
    np.testing.assert_array_equal(model.predict(rows), before)
    model.set_params(row_norm=3.0, sparsity=1).fit(rows, labels)
    np.testing.assert_allclose(
        model.predict([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0, 1.0]]),
        [2.0, 3.0] * model.coef_[1:3] + model.intercept_,
    )


def test_classes_are_predicted_from_clipped_rows(data) -> None:
    rows, labels = data
    model = convex.OutputPerturbationClassifier(classes=["no", "yes"])
    model.fit(rows, labels)
    long = 5 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(
        model.decision_function(long), model.decision_function(2 * long)
    )
    np.testing.assert_allclose(
        model.predict_proba(long), model.predict_proba(2 * long)
    )
    assert not np.allclose(model.decision_function(long / 50), 0)


def test_losses_of_the_other_kind_are_refused(data) -> None:
    for kind, loss in (
        (convex.OutputPerturbationClassifier, "huber"),
        (convex.OutputPerturbationRegressor, "logistic"),
    ):
        with pytest.raises(ValueError, match=r"For .* use OutputPerturbation"):
            kind(loss=loss).fit(*data)


def test_a_fixed_random_state_is_not_private(data) -> None:
    model = convex.OutputPerturbationClassifier(random_state=1)
    with pytest.warns(PrivacyWarning, match="fixed seed"):
        model.fit(*data)
    assert model.statement_.startswith("NOT PRIVATE")


def test_sparse_tensors(data) -> None:
    tf = pytest.importorskip("tensorflow")
    rows, labels = data
    tensor = tf.sparse.from_dense(rows)
    model = convex.OutputPerturbationClassifier().fit(tensor, labels)
    np.testing.assert_array_equal(model.predict(tensor), model.predict(rows))


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "tf_sparse_dp.convex.estimators")
    monkeypatch.delattr(convex, "estimators")
    convex.OutputPerturbation(epsilon=1.0, delta=1e-6)
    with pytest.raises(ImportError, match=r"tf_sparse_dp\[convex\]"):
        convex.OutputPerturbationClassifier  # noqa: B018
