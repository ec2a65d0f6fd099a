"""Retrieval for two-tower models, in place of TensorFlow Recommenders' task.

`tfrs.tasks.Retrieval` takes the other examples of the batch for negatives, so
the loss of one example depends on the others and no gradient is one example's
own. Here negatives come from a public catalogue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_REDUCTIONS = ("mean", "sum")
_LOWEST = -1e9  # The score of what is left out; finite, so that 0 * it is 0.


class Retrieval(tf.keras.layers.Layer):
    r"""Softmax over candidates that are public, not those of the batch.

    With $q$ an example's query, $c^+$ its candidate, $s(q, c) = q \cdot c / t$
    and $t$ = `temperature`, an example's loss is

    $-s(q, c^+) + \log \sum_{c} \exp s(q, c)$ over the whole catalogue, or

    $-s(q, c^+) + \log ( \exp s(q, c^+) + \sum_{j=1}^k
    \exp ( s(q, c_j) - \log (k\, p(c_j)) ) )$

    with $k$ = `num_negatives` candidates $c_j$ drawn independently from $p$ =
    `candidate_probabilities`, anew in each step. Negatives that are $c^+$ are
    left out; the sum then has the expectation that the whole catalogue gives.

    The batch shares its negatives, which are drawn without looking at it. So
    every example has a gradient at $k + 1$ rows of a candidate table, or at all
    of them; they count in its norm, and are held as two thin matrices where
    the tower is a table with at most linear layers on top. A tower with
    activations holds $k$ backpropagated rows for each example.

    **Guarantee.** None of its own: a loss whose terms see one example each, if
    `candidates` and `candidate_probabilities` are public. Popularities that
    were counted in the training data are not public. Metrics are not private;
    compute them on held-out data.

    Args:
      candidates: The catalogue, as `candidate_model` takes it: an array, or
        nested arrays, with one row per candidate, or a `tf.data.Dataset` of
        single candidates.
      candidate_model: Maps rows of the catalogue to embeddings; the model's
        own candidate tower.
      num_negatives: How many candidates to draw. None takes the softmax over
        the whole catalogue, and encodes all of it in each step.
      candidate_probabilities: Public probabilities of being drawn, one per
        candidate. None draws uniformly.
      candidate_ids: What identifies each candidate; by default `candidates`,
        if that is a vector.
      temperature: What scores are divided by.
      metrics: Objects such as `tfrs.metrics.FactorizedTopK`, or one of them.
      loss_metrics: Keras metrics of the loss.
      reduction: "mean" or "sum" over the batch; the optimizer's
        `loss_reduction`.
      seed: Makes the drawn negatives repeatable.
      name: Name of the layer.

    Raises:
      ValueError: If an argument is not what is described above.

    Example:
      >>> table = tf.keras.layers.Embedding(100, 8)
      >>> task = Retrieval(tf.range(100), table, num_negatives=20)
      >>> queries, items = tf.ones([4, 8]), tf.constant([3, 14, 15, 92])
      >>> task(queries, table(items), candidate_ids=items).shape
      TensorShape([])

    Reference: Bengio and Senécal, "Adaptive Importance Sampling to Accelerate
    Training of a Neural Probabilistic Language Model", 2008.
    """

    def __init__(
        self,
        candidates: Any,
        candidate_model: Callable[[Any], tf.Tensor],
        *,
        num_negatives: int | None = None,
        candidate_probabilities: Any = None,
        candidate_ids: Any = None,
        temperature: float = 1.0,
        metrics: Any = None,
        loss_metrics: Sequence[Any] = (),
        reduction: str = "mean",
        seed: int | None = None,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self._catalogue = _Catalogue(candidates, candidate_ids)
        self._sampler = _sampler(
            self._catalogue.size, num_negatives, candidate_probabilities, seed
        )
        if not temperature > 0:
            raise ValueError(
                f"temperature={temperature!r} was given; expected a number "
                "above 0."
            )
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"reduction={reduction!r} was given; expected one of "
                f"{_REDUCTIONS}: how the losses of a batch are combined."
            )
        if metrics is None:
            metrics = []
        elif not isinstance(metrics, Sequence):
            metrics = [metrics]
        self.candidate_model = candidate_model
        self.temperature = float(temperature)
        self.reduction = reduction
        self.factorized_metrics = list(metrics)
        self.loss_metrics = list(loss_metrics)

    def call(
        self,
        query_embeddings: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        candidate_ids: tf.Tensor | None = None,
        compute_metrics: bool = True,
    ) -> tf.Tensor:
        """The loss of a batch of queries and the candidates they belong to.

        Args:
          query_embeddings: [B, width].
          candidate_embeddings: [B, width].
          sample_weight: [B]; losses are multiplied by it.
          candidate_ids: [B]; what identifies the candidates. Needed to leave
            out drawn negatives that are an example's own candidate, and for
            metrics that compare ids.
          compute_metrics: Whether to update `metrics`.
        """
        losses = self.example_losses(
            query_embeddings, candidate_embeddings, candidate_ids
        )
        if sample_weight is not None:
            weights = tf.cast(tf.reshape(sample_weight, [-1]), losses.dtype)
            losses *= weights
        loss = tf.reduce_sum(losses)
        if self.reduction == "mean":
            loss /= tf.cast(tf.shape(losses)[0], losses.dtype)
        for metric in self.loss_metrics:
            metric.update_state(loss)
        if compute_metrics:
            for metric in self.factorized_metrics:
                if candidate_ids is not None:
                    _require_identifiers(metric)
                metric.update_state(
                    query_embeddings,
                    candidate_embeddings,
                    true_candidate_ids=candidate_ids,
                    sample_weight=sample_weight,
                )
        return loss

    def example_losses(
        self,
        query_embeddings: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        candidate_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Every example's own loss, [B]."""
        queries = query_embeddings / self.temperature
        positive = tf.reduce_sum(queries * candidate_embeddings, 1)
        if self._sampler is None:
            scores = self._scores(queries, self._catalogue.features)
            return tf.reduce_logsumexp(scores, 1) - positive
        drawn, correction = self._sampler.draw()
        scores = self._scores(queries, self._catalogue.rows(drawn))
        scores -= tf.cast(correction, scores.dtype)
        if candidate_ids is not None:
            hits = self._catalogue.same(candidate_ids, drawn)
            lowest = tf.constant(_LOWEST, scores.dtype)
            scores = tf.where(hits, lowest, scores)
        scores = tf.concat([positive[:, tf.newaxis], scores], 1)
        return tf.reduce_logsumexp(scores, 1) - positive

    def top_k(
        self, query_embeddings: tf.Tensor, k: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The best k candidates of the catalogue: scores and ids, [B, k]."""
        scores = self._scores(query_embeddings, self._catalogue.features)
        scores, places = tf.math.top_k(scores, k)
        return scores, tf.gather(self._catalogue.identifiers(), places)

    @contextlib.contextmanager
    def with_fixed_negatives(self) -> Iterator[None]:
        """While open, steps that are traced have the same negatives each time.

        For checks that compare runs of a step, not for training.
        """
        sampler = self._sampler
        if sampler is not None:
            self._sampler = sampler.fixed()
        try:
            yield
        finally:
            self._sampler = sampler

    def _scores(self, queries: tf.Tensor, features: Any) -> tf.Tensor:
        candidates = self.candidate_model(features)
        return tf.matmul(queries, candidates, transpose_b=True)


def _require_identifiers(metric: Any) -> None:
    """Refuses candidates of TFRS that only their positions identify.

    It would compare positions to ids, and find nothing without a word.
    """
    index = getattr(metric, "_candidates", None)
    candidates = getattr(index, "_candidates", None)
    if isinstance(candidates, tf.data.Dataset) and not isinstance(
        candidates.element_spec, tuple
    ):
        raise ValueError(
            f"candidate_ids were passed, but the candidates of {metric.name!r} "
            "have no identifiers to compare them with; expected a data set of "
            "(ids, embeddings). Build it with candidates=ids.batch(128).map("
            "lambda i: (i, candidate_model(i)))."
        )


class _Catalogue:
    """Public candidates, as constants."""

    def __init__(self, features: Any, ids: Any):
        if isinstance(features, tf.data.Dataset):
            features = tf.nest.map_structure(lambda *t: tf.stack(t), *features)
        elif isinstance(features, list):
            features = tf.convert_to_tensor(features)
        self.features = tf.nest.map_structure(tf.convert_to_tensor, features)
        rows = tf.nest.flatten(self.features)
        if ids is None and len(rows) == 1 and rows[0].shape.rank == 1:
            ids = rows[0]
        self._ids = None if ids is None else tf.convert_to_tensor(ids)
        if ids is not None:
            rows = [*rows, self._ids]
        sizes = {t.shape[0] if t.shape.rank else None for t in rows}
        if len(sizes) != 1 or None in sizes or 0 in sizes:
            raise ValueError(
                "candidates (and candidate_ids) were given with shapes "
                f"{[tuple(t.shape) for t in rows]}; expected one row per "
                "candidate in each, and the same number of rows in all."
            )
        self.size: int = rows[0].shape[0]

    def rows(self, places: tf.Tensor) -> Any:
        """Some candidates."""
        return tf.nest.map_structure(
            lambda t: tf.gather(t, places), self.features
        )

    def identifiers(self) -> tf.Tensor:
        if self._ids is None:
            raise ValueError(
                "candidate_ids are needed here, but the catalogue has none. "
                "Pass Retrieval(candidates, ..., candidate_ids=...) too, with "
                "one id per candidate."
            )
        return self._ids

    def same(self, ids: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Whether each of `ids` [B] is each of the drawn candidates: [B, k]."""
        mine = tf.gather(self.identifiers(), places)
        ids = tf.reshape(ids, [-1, 1])
        if mine.dtype != ids.dtype and mine.dtype.is_integer:
            mine, ids = tf.cast(mine, tf.int64), tf.cast(ids, tf.int64)
        return tf.equal(ids, mine[tf.newaxis])


class _Uniform:
    """Draws each candidate with the same probability."""

    def __init__(self, size: int, count: int, seed: int | None):
        self._size, self._count, self._seed = size, count, seed

    def draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Places in the catalogue, and log(k p) for each."""
        drawn = tf.random.uniform(
            [self._count], maxval=self._size, dtype=tf.int32, seed=self._seed
        )
        return drawn, tf.math.log(self._count / self._size)

    def fixed(self) -> _Fixed:
        drawn = np.random.RandomState(0).randint(self._size, size=self._count)
        return _Fixed(drawn, np.log(self._count / self._size))


class _Weighted:
    """Draws candidates with given probabilities."""

    def __init__(self, probabilities: Any, count: int, seed: int | None):
        weights = np.asarray(probabilities, np.float64)
        self._count, self._seed = count, seed
        cumulative = np.cumsum(weights)
        self._cumulative = tf.constant(cumulative / cumulative[-1])
        weights = weights / cumulative[-1]
        self._logarithms = tf.constant(np.log(count * weights), tf.float32)

    def draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Places in the catalogue, and log(k p) for each."""
        uniform = tf.random.uniform(
            [self._count], dtype=tf.float64, seed=self._seed
        )
        return self._at(uniform)

    def fixed(self) -> _Fixed:
        uniform = np.random.RandomState(0).uniform(size=self._count)
        return _Fixed(*(part.numpy() for part in self._at(uniform)))

    def _at(self, uniform: Any) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = tf.searchsorted(self._cumulative, uniform, side="right")
        return drawn, tf.gather(self._logarithms, drawn)


class _Fixed:
    """Gives the same candidates each time."""

    def __init__(self, drawn: np.ndarray, correction: Any):
        self._drawn, self._correction = drawn, correction

    def draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Places in the catalogue, and log(k p) for each."""
        drawn = tf.constant(self._drawn, tf.int32)
        return drawn, tf.constant(self._correction, tf.float32)

    def fixed(self) -> _Fixed:
        return self


def _sampler(
    size: int, count: int | None, probabilities: Any, seed: int | None
) -> _Uniform | _Weighted | _Fixed | None:
    if count is None:
        if probabilities is not None:
            raise ValueError(
                "candidate_probabilities were given without num_negatives. "
                "They say how negatives are drawn; the softmax over the whole "
                "catalogue draws none. Leave them out or pass num_negatives."
            )
        return None
    if count < 1:
        raise ValueError(
            f"num_negatives={count!r} was given; expected at least 1, or None "
            "for the whole catalogue."
        )
    if probabilities is None:
        return _Uniform(size, count, seed)
    array = np.asarray(probabilities, np.float64)
    if array.shape != (size,) or not (
        np.isfinite(array).all() and (array > 0).all()
    ):
        raise ValueError(
            f"candidate_probabilities of shape {array.shape} were given; "
            f"expected {size} numbers, all above 0: a candidate that is never "
            "drawn is never learned to be wrong."
        )
    if abs(array.sum() - 1) > 1e-3:
        raise ValueError(
            f"candidate_probabilities add up to {array.sum():.6g}; expected 1."
        )
    return _Weighted(array, count, seed)
