"""Poisson sampling of users: all that one user adds to a batch is one unit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import Draws, checked_seed, fresh_draws
from tf_sparse_dp.sampling.padding import pad_rows
from tf_sparse_dp.sampling.poisson import PoissonSampling, warn_of_seed
from tf_sparse_dp.sampling.sources import open_examples
from tf_sparse_dp.sampling.workers import Share, dealt_out, own_share

_ID_TYPES = (int, str, bytes, np.integer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserSampling:
    r"""Batches in which every user takes part independently.

    .. math:: P(B_t = S) = q^{|S|} (1 - q)^{U - |S|}, \quad q = b / U

    for every set S of users and each of T steps, with U = `num_users`,
    b = `users_per_batch` and T = `num_steps`. A user who is drawn adds at most
    m = `examples_per_user` examples: all of theirs if they have no more, and
    otherwise m of them, chosen anew each time, uniformly without replacement.

    The batch has one unit of m rows for each of `max_users_per_batch` users,
    and the optimizer clips the *sum* of a unit's gradients.

    **Guarantee**: neighbours differ by the presence of one user with all of
    their examples, however many. Given which other users are in a batch, a user
    is in it with probability exactly q. Which examples represent a user, and in
    which rows of their unit they stand, depends on nobody else. Overflow and
    places are as for `PoissonSampling`, with users in place of examples: drawn
    users go to uniformly random units of the batch.

    U is public and need not be exact: any upper bound of the number of users
    will do. A draw then may fall on nobody, so that batches are smaller by
    as much as U is too large.

    Args:
      num_users: U, at least the number of users in the data.
      users_per_batch: b, the expected number of users in a batch, if there are
        U. Noisy sums are divided by it.
      examples_per_user: m, the most examples that a user adds to a batch.
      epochs: Length of the run in expected passes over the users, so that
        T = round(epochs·U/b); need not be whole.
      steps: T itself. Give either `epochs` or `steps`.
      max_users_per_batch: The number of units of every batch, at least
        `users_per_batch`. By default as in `PoissonSampling`.
      workers: The number of processes that train together, among which users
        are dealt out as examples are in `PoissonSampling`.

    Raises:
      TypeError: A count is not an integer.
      ValueError: A count is out of range or cannot be dealt out, or not
        exactly one of `epochs` and `steps` is given.

    Example:
      >>> sampling = UserSampling(
      ...     num_users=3, users_per_batch=1, examples_per_user=2, steps=5
      ... )
      >>> users = ["ann", "bob", "ann", "ann", "cy"]
      >>> items = np.array([10, 20, 30, 40, 50])
      >>> for x, y, weight in sampling.dataset((items,), users):
      ...     print(x.shape, weight.dtype.name)
      (8,) float16
      (8,) float16
      (8,) float16
      (8,) float16
      (8,) float16

    Reference: McMahan, Ramage, Talwar and Zhang, "Learning Differentially
    Private Recurrent Language Models" (2018), for sampling and clipping by
    user.
    """

    num_users: int
    users_per_batch: int
    examples_per_user: int
    epochs: float | None = None
    steps: int | None = None
    max_users_per_batch: int = None  # type: ignore[assignment]  # chosen below
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("num_users", "users_per_batch", "examples_per_user"):
            self._set(name, whole_number(name, getattr(self, name)))
        if self.users_per_batch > self.num_users:
            raise ValueError(
                f"users_per_batch is {self.users_per_batch}, expected at most "
                f"num_users={self.num_users}. Lower the batch size; equal to "
                "num_users, it takes all users in every step."
            )
        limit = self.max_users_per_batch
        if limit is not None:
            whole_number(
                "max_users_per_batch", limit, at_least=self.users_per_batch
            )
        # Its checks of epochs and steps are ours.
        users = self._users
        self._set("epochs", users.epochs)
        self._set("steps", users.steps)
        self._set("max_users_per_batch", users.max_batch_size)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @functools.cached_property
    def _users(self) -> PoissonSampling:
        """Who is drawn: users are to it what examples are elsewhere."""
        return PoissonSampling(
            num_examples=self.num_users,
            batch_size=self.users_per_batch,
            epochs=self.epochs,
            steps=self.steps,
            max_batch_size=self.max_users_per_batch,
            workers=self.workers,
        )

    @property
    def num_steps(self) -> int:
        """T, the number of batches."""
        return self._users.num_steps

    @property
    def num_units(self) -> int:
        """How many are protected: the number of users."""
        return self.num_users

    @property
    def examples_per_unit(self) -> int:
        """m, the rows of a batch that are one user's."""
        return self.examples_per_user

    @property
    def batch_rows(self) -> int:
        """The number of rows of every batch, padding included."""
        return self.max_users_per_batch * self.examples_per_user

    @property
    def sampling_probability(self) -> float:
        """q, the probability that a given user is in a given batch."""
        return self._users.sampling_probability

    @property
    def expected_batch_size(self) -> float:
        """The mean number of users in a batch."""
        return self._users.expected_batch_size

    @property
    def overflow_probability(self) -> float:
        """Upper bound of the probability that a batch is cut, for one step."""
        return self._users.overflow_probability

    @property
    def num_compositions(self) -> int:
        """How often the mechanism is charged: once for each step."""
        return self._users.num_compositions

    @property
    def composition_unit(self) -> str:
        """What is charged once."""
        return self._users.composition_unit

    @property
    def neighbouring_relation(self) -> str:
        """Which data sets must look alike."""
        return self._users.neighbouring_relation

    @property
    def requires_validity(self) -> bool:
        """Whether batches must carry the validity column."""
        return True

    @property
    def unit(self) -> str:
        """Whose presence is protected."""
        return "user"

    @property
    def description(self) -> str:
        """One sentence for the privacy statement."""
        plural = "" if self.examples_per_user == 1 else "s"
        return (
            f"Poisson sampling of users: in each of {self.num_steps:,} steps, "
            f"each of {self.num_users:,} users is in the batch independently "
            f"with probability {self.sampling_probability:.6g}, "
            f"{self.users_per_batch:,} being expected, and adds at most "
            f"{self.examples_per_user:,} example{plural}, chosen at random"
            f"{dealt_out(self.workers)}."
        )

    def with_compositions(self, number: int) -> UserSampling:
        """The same batches for another number of steps.

        A `max_users_per_batch` that is the default is the new default.
        """
        return self._changed(self._users.with_compositions(number))

    def with_batch_size(self, users: int) -> UserSampling:
        """As many steps with batches of another expected number of users.

        A `max_users_per_batch` that is the default is the new default.
        """
        return self._changed(self._users.with_batch_size(users))

    def _changed(self, users: PoissonSampling) -> UserSampling:
        return UserSampling(
            num_users=users.num_examples,
            users_per_batch=users.batch_size,
            examples_per_user=self.examples_per_user,
            steps=users.num_steps,
            max_users_per_batch=users.max_batch_size,
            workers=users.workers,
        )

    def dataset(
        self, data: Any, user_ids: Any, *, seed: int | None = None
    ) -> tf.data.Dataset:
        """The batches of a run, as a pipeline for `fit`.

        As `PoissonSampling.dataset`, with `batch_rows` rows: each
        `examples_per_user` consecutive ones are one user's examples and
        padding, in random order. A user has one such unit in a batch or none.

        Args:
          data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, with one row for
            each example; or `RandomAccess`.
          user_ids: Whose example each row is: a vector of integers or strings.
            Only equality counts; ids need not be features. With several
            workers, among which users are dealt out by number, integers from 0
            to `num_users` - 1 that do not depend on who else is in the data.
          seed: For tests only: makes the draws repeatable, and therefore not
            private.

        Raises:
          TypeError: The data or the ids are of a form that cannot be used.
          ValueError: Lengths differ, there are more than `num_users` users, a
            weight is negative or not finite, or a scalar feature has type
            float16.
        """
        share = own_share(self.workers, self.max_users_per_batch)
        ids = _checked_ids(user_ids)
        if self.workers > 1:
            _check_numbers(ids, self.num_users)
        belongings = Belongings(ids, self.num_users, self.workers > 1)
        examples = open_examples(
            data,
            belongings.num_examples,
            told_by="the length of user_ids",
            beside=[ids],
        )
        iterations = fresh_draws(checked_seed(seed))
        warn_of_seed(seed)

        def batches() -> Iterator[tuple[np.ndarray, ...]]:
            draws = next(iterations)
            for _ in range(self.num_steps):
                drawn, places = self._draw(draws, belongings, share)
                yield tuple(
                    pad_rows(rows, places, self.batch_rows)
                    for rows in examples.rows(drawn)
                )

        return examples.dataset(
            batches,
            batch_rows=self.batch_rows,
            steps=self.num_steps,
            weights=True,
        )

    def _draw(
        self, draws: Draws, belongings: Belongings, share: Share
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which examples are in a batch, sorted, and in which row each is."""
        size = self.examples_per_user
        users, units = self._users.draw(draws, share)
        examples, present = belongings.some(users, size, draws)
        rows = units[:, None] * size + draws.permutations(users.size, size)
        examples, rows = examples[present], rows[present]
        order = np.argsort(examples)
        return examples[order], rows[order]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal sampling."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "workers" or self.workers > 1
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> UserSampling:
        """The inverse of `get_config`."""
        return cls(**config)


class Belongings:
    """The examples of each user, found in time that depends on those alone.

    Args:
      ids: Whose example each one is.
      num_users: How many users there may be. Those without examples come last.
      numbered: Whether ids are numbers below `num_users`, which users keep.
    """

    def __init__(self, ids: np.ndarray, num_users: int, numbered: bool = False):
        known, numbers, counts = np.unique(
            ids, return_inverse=True, return_counts=True
        )
        if known.size > num_users:
            raise ValueError(
                f"user_ids names {known.size} users, expected at most "
                f"num_users={num_users}. The guarantee is computed from that "
                "number: raise it to a public bound of the number of users."
            )
        self.num_examples = ids.size
        self._examples = np.argsort(numbers, kind="stable")
        self._counts = np.zeros(num_users, np.int64)
        self._counts[known if numbered else slice(known.size)] = counts
        self._starts = np.cumsum(self._counts) - self._counts

    def some(
        self, users: np.ndarray, most: int, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        """At most `most` examples of each user, a uniform subset of theirs.

        Returns:
          Examples, [users, most], and which of them are there: those of a user
          come first.
        """
        counts = self._counts[users]
        within = np.tile(np.arange(most), (users.size, 1))
        present = within < counts[:, None]
        many = counts > most
        within[many] = draws.subsets(counts[many], most)
        places = self._starts[users][:, None] + within
        places[~present] = 0
        return self._examples[places], present


def _check_numbers(ids: np.ndarray, num_users: int) -> None:
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= num_users:
        raise ValueError(
            f"user_ids are of type {ids.dtype}, or not all from 0 to "
            f"num_users - 1 = {num_users - 1}; expected such numbers, by which "
            "users are dealt out among workers. Number users once, so that the "
            "number of one does not depend on who else is there."
        )


def _checked_ids(user_ids: Any) -> np.ndarray:
    """The ids as an array in which equal ids, and no others, are equal."""
    typed = hasattr(user_ids, "dtype")
    ids = np.asarray(user_ids) if typed else np.array(user_ids, object)
    if ids.dtype.kind == "O" and ids.ndim == 1:
        # NumPy would make strings of whatever stands between strings, such as
        # NaN for a missing id.
        kinds = {type(user) for user in ids.tolist()}
        if len(kinds) == 1 and issubclass(kinds.pop(), _ID_TYPES):
            made = np.asarray(ids.tolist())
            # NumPy drops zero bytes at the end: "a" and "a\0" would be equal.
            if made.tolist() == ids.tolist():
                ids = made
    if ids.ndim != 1 or ids.dtype.kind not in "iuSU":
        raise TypeError(
            f"user_ids has shape {ids.shape} and dtype {ids.dtype}, expected "
            "a vector of integers, or of strings, one for each example. Leave "
            "out examples without a user, or give each an id of its own."
        )
    if not ids.size:
        raise ValueError(
            "user_ids is empty, expected one id for each example. Pass the "
            "column of the data that names users."
        )
    return ids
