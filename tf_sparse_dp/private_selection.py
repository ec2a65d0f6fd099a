"""The best of several private training runs, and nothing of the others."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import numbers
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import dp_accounting
import numpy as np
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.filters import PrivacyFilter
from tf_sparse_dp.accounting.selection import SelectionPlan
from tf_sparse_dp.accounting.selection_statement import selection_statement
from tf_sparse_dp.errors import BudgetExhausted
from tf_sparse_dp.exact_draws import floored_gaussian, floored_laplace, uniform
from tf_sparse_dp.object_names import Counts, name_counts, set_name_counts
from tf_sparse_dp.optimizers.trained_before import beginnings
from tf_sparse_dp.selected_models import check_trained, private_optimizers

_Option = TypeVar("_Option")
_Relation = dp_accounting.NeighboringRelation
# Scores are whole multiples of the clip over this, so that they add up exactly.
_STEPS = 2**30
_FAILED = object()
# What cannot be changed by a later run, although it may be the same object.
_UNCHANGING = (numbers.Number, str, bytes, type(None), tuple, frozenset)


class Run:
    """What a run may use: a directory of its own, and random choices.

    It has no number: runs must not know which of them they are, since the
    guarantee is for runs that are all alike. What they try they draw.
    """

    def __init__(self) -> None:
        self._directory: str | None = None

    @property
    def directory(self) -> str:
        """A new directory, for checkpoints and logs of this run.

        It is deleted unless this run is the best; then it is
        `SelectionResult.directory`.
        """
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="private_run_")
        return self._directory

    def choice(self, options: Sequence[_Option]) -> _Option:
        """One of the options, each as likely as the others."""
        if not len(options):
            raise ValueError("There are no options, expected at least one.")
        return options[secrets.randbelow(len(options))]

    def log_uniform(self, low: float, high: float) -> float:
        """A number between, of which any factor is as likely as another."""
        if not 0 < low <= high < math.inf:
            raise ValueError(
                f"low is {low!r} and high {high!r}, expected 0 < low <= high."
            )
        return low * (high / low) ** float(uniform())

    def _remove(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionResult:
    """The best run, with what is guaranteed.

    Attributes:
      value: What `train_fn` returned for it. None if there was no run, which
        only Poisson's distribution allows.
      directory: Of the best run, if it used one. It is yours to delete.
      plan: What was accounted for.
      runs: With `reveal_all`, values and noisy scores of all runs, the best
        first; None otherwise.
      filter: What paid, if anything did.
    """

    value: Any
    directory: str | None
    plan: SelectionPlan
    runs: tuple[tuple[Any, float], ...] | None
    filter: PrivacyFilter | None = None

    @property
    def statement(self) -> str:
        """The guarantee in plain words."""
        return selection_statement(self.plan, self.filter)


def private_selection(
    train_fn: Callable[[Run], Any],
    score_fn: Callable[[Any], Any],
    plan: SelectionPlan,
    *,
    score_clip: float | None = None,
    filter: PrivacyFilter | None = None,
) -> SelectionResult:
    r"""Trains a random number of times, and gives the best of the models.

    Boosting by private selection: the paper's Algorithm 5, for any training
    that is private, with the account of `SelectionPlan`.

    **Scores.** Larger is better. If `plan.score_noise_multiplier` is None,
    `score_fn(value)` is one number, computed from `value` and from public data
    only. Otherwise it is a vector with one entry $f_i$ for every unit (example,
    or user) of the private data, and the score of a run is

    .. math:: \sum_i \mathrm{clip}(f_i, -B, B) + \text{noise of size } zB

    with B = `score_clip` and z = `plan.score_noise_multiplier`. Adding or
    removing a unit moves the sum by up to B, replacing one by up to 2B, for
    which the account halves z. For the zeroing of a unit, which says nothing
    about its score, the noise is doubled here. The mean of n scores has noise
    zB/n. To make B small, subtract the scores of a fixed public model from
    $f_i$. Clipped scores are rounded to whole numbers of $2^{-30}B$ and the
    noise is drawn in such steps exactly, so the score is a rounding of the sum
    with continuous noise. A unit's score that is not finite counts as -B, a
    public score that is not finite is below all others. A vector of length 1,
    such as a mean in a list, is refused: a mean is no unit's. So that there is
    more than one unit is public.

    **Guarantee**: that of the plan, for what is returned, if

    * `train_fn` is as private as `plan.run` says, in what it raises too, for
      each call anew: it starts from nothing that an earlier call left behind.
      (Where `plan.run` is a `PrivacyPlan` or a filter, every Keras model that
      is returned, also within tuples, lists and dicts, is looked at if it is
      compiled: its optimizer has to be a `DPSparseOptimizer` with that plan, or
      with a filter of that kind, budget and relation which is not `plan.run`
      itself and no other run has. Several models of a run have to share it. A
      model whose training began elsewhere, such as in another run, that was
      selected before, or whose weights another private optimizer trained as
      well is refused.);
    * `score_fn` is as described, and no unit has more than one of the $f_i$;
    * nothing of the runs but the result is looked at.

    For the last, output that runs print to `sys.stdout` and `sys.stderr` is
    discarded, warnings are shown for the best run only, directories of others
    are deleted, nothing refers to their values, and how many there were is not
    told: names that Keras gives to models and layers begin anew with each run.
    What a run writes elsewhere (TensorBoard, files, loggers that were set
    up before, the log of TensorFlow itself) is not under control here, nor is
    how long all took, which tells about the number of runs; so do generators of
    random numbers that were seeded before, names of functions in a SavedModel,
    and what TensorFlow calls variables in memory. A process that is killed
    leaves directories of runs, `private_run_*` where temporary files are:
    delete them. To look at all runs, make the plan with `reveal_all=True`:
    every run is charged then.

    **The best model's own statement**: the `DPSparseOptimizer` of a model that
    is returned is told, so that its `privacy_statement()` has the epsilon and
    delta of the selection, also after saving and loading the model.

    **Errors.** What `train_fn` raises ends the selection and is raised, and all
    stays spent. That is no leak beyond the plan: it is the selection in which a
    run that fails has the highest score. A `score_fn` on private data must not
    fail for any of it: if it does, that is told, without the error. Its
    warnings are not shown.

    Args:
      train_fn: Is called with a `Run`, and returns a model or anything else: a
        new object each time.
      score_fn: Is called with what `train_fn` returned.
      plan: What a run costs, how many there are, and the noise of scores.
      score_clip: B; above 0, and public: not from the private data. None if
        scores are public.
      filter: Pays for all of it, once, before the first run. Nothing is given
        back.

    Returns:
      The best run.

    Raises:
      BudgetExhausted: The filter does not pay for it. Nothing was run.
      TypeError, ValueError: An argument or a score is not as described.

    Example:
      >>> plan = SelectionPlan(
      ...     run=(0.5, 0.0), delta=0.0, mean_runs=4, form="tight"
      ... )
      >>> best = private_selection(
      ...     lambda run: run.choice([0.1, 0.2, 0.3]), lambda rate: -rate, plan
      ... )
      >>> best.value in (0.1, 0.2, 0.3), round(best.plan.epsilon, 6)
      (True, 1.5)

    Reference: Liu and Talwar, "Private Selection from Private Candidates"
    (2019), Algorithm 2; Papernot and Steinke, "Hyperparameter Tuning with Rényi
    Differential Privacy" (2022).
    """
    _check_arguments(train_fn, score_fn, plan, score_clip)
    if filter is not None:
        _spend(filter, plan)
    best, revealed = _all_runs(train_fn, score_fn, plan, score_clip)
    for warning in best.warnings if best is not None else ():
        warnings.warn_explicit(
            warning.message, warning.category, warning.filename, warning.lineno
        )
    revealed.sort(key=lambda scored: scored.key, reverse=True)
    for scored in revealed or ([] if best is None else [best]):
        for optimizer in private_optimizers(scored.value):
            optimizer.mark_selected(epsilon=plan.epsilon, delta=plan.delta)
    return SelectionResult(
        value=None if best is None else best.value,
        directory=None if best is None else best.run._directory,
        plan=plan,
        runs=tuple((run.value, run.score) for run in revealed)
        if plan.reveal_all
        else None,
        filter=filter,
    )


@dataclasses.dataclass
class _Scored:
    """A run that has ended; `key` is its score, and what breaks ties."""

    run: Run
    value: Any
    score: float
    key: tuple[Any, int]
    warnings: list[warnings.WarningMessage]
    names: Counts  # As they are after it.


def _all_runs(
    train_fn: Callable[[Run], Any],
    score_fn: Callable[[Any], Any],
    plan: SelectionPlan,
    score_clip: float | None,
) -> tuple[_Scored | None, list[_Scored]]:
    """The best run, and all of them if they may be seen."""
    number = plan.run_count.draw()
    if plan.reveal_all:
        number = int(plan.mean_runs)
    best: _Scored | None = None
    scored: _Scored | None = None
    loser: _Scored | None = None
    revealed: list[_Scored] = []
    filters: set[str] = set()  # That runs had.
    names = name_counts()
    try:
        for _ in itertools.repeat(None, number):  # Uncounted, see below.
            # A model is not to be called after the number of its run.
            set_name_counts(names)
            scored = _one_run(train_fn, score_fn, plan, score_clip, filters)
            if _is_again(scored, best, revealed):
                raise _trained_again(scored)
            best, loser = _better(scored, best)
            if plan.reveal_all:
                revealed.append(scored)
            elif loser is not None:
                loser.run._remove()
            scored = loser = None  # Two models at a time are enough.
    except BaseException:
        for one in (best, *revealed):
            if one is not None:
                one.run._remove()
        # Tracebacks hold on to what was in here.
        best = scored = loser = one = None
        revealed, number = [], 0
        filters.clear()
        set_name_counts(names)
        raise
    # Nor is what is made afterwards to be called after their number.
    set_name_counts(names if best is None else best.names)
    return best, revealed


def _better(
    scored: _Scored, best: _Scored | None
) -> tuple[_Scored, _Scored | None]:
    if best is None or scored.key > best.key:
        return scored, best
    return best, scored


def _one_run(
    train_fn: Callable[[Run], Any],
    score_fn: Callable[[Any], Any],
    plan: SelectionPlan,
    score_clip: float | None,
    filters: set[str],
) -> _Scored:
    run = Run()
    units: Any
    try:
        with _unheard(plan.reveal_all) as heard:
            with beginnings() as begun:
                value = _trained(train_fn, run)
            check_trained(value, plan, begun, filters)
            if score_clip is None:
                units = score = _public_score(score_fn(value))
        names = name_counts()
        if score_clip is not None:
            units = _private_score(score_fn, value, score_clip, plan)
            score = units / _STEPS * score_clip
    except BaseException:
        run._remove()
        raise
    key = units, secrets.randbits(128)
    return _Scored(run, value, score, key, heard, names)


def _trained(train_fn: Callable[[Run], Any], run: Run) -> Any:
    try:
        value = train_fn(run)
    except BudgetExhausted as error:
        raise BudgetExhausted(
            f"{error} (In a selection: build a new model, optimizer and filter "
            "within train_fn, and keep files of theirs, such as ledgers, in "
            "run.directory. What an earlier run has spent of them is not there "
            "for the next.)"
        ) from error
    if value is None:
        raise TypeError(
            "train_fn returned None, expected the trained model, or anything "
            "else that score_fn can score. Is a `return` missing? What was "
            "spent stays spent."
        )
    return value


def _private_score(
    score_fn: Callable[[Any], Any],
    value: Any,
    score_clip: float,
    plan: SelectionPlan,
) -> int:
    """The noisy score; nothing else that `score_fn` says is heard."""
    with _unheard(reveal=False), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # Not "error" either.
        try:
            told = score_fn(value)
        except Exception:
            told = _FAILED
        if told is not _FAILED:
            return _noisy_sum(told, score_clip, plan)
    raise ValueError(
        "score_fn raised an error. It sees private data, so that the error is "
        "not shown; expected a function that fails for no data. Call it on "
        "public data to see why it does. What was spent stays spent."
    )


@contextlib.contextmanager
def _unheard(reveal: bool) -> Iterator[list[warnings.WarningMessage]]:
    """Nothing is printed; warnings are kept, to be shown for the best run."""
    if reveal:
        yield []
        return
    with (
        warnings.catch_warnings(record=True) as heard,
        contextlib.redirect_stdout(_Nowhere()),
        contextlib.redirect_stderr(_Nowhere()),
    ):
        yield heard


class _Nowhere(io.TextIOBase):
    """Takes what is written, and forgets it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def _public_score(told: Any) -> float:
    try:
        array = np.asarray(told, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(2)
    if array.size != 1:
        raise ValueError(
            f"score_fn returned {type(told).__name__} of shape "
            f"{np.shape(array)}, expected one number: without a "
            "score_noise_multiplier of the plan, scores are computed from "
            "public data. For scores from private data, give the plan one, "
            "and score_clip."
        )
    score = float(array.reshape(()))
    return score if math.isfinite(score) else -math.inf


def _noisy_sum(told: Any, clip: float, plan: SelectionPlan) -> int:
    """The clipped sum in steps of clip / _STEPS, with noise."""
    values = np.asarray(told)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"score_fn returned {type(told).__name__} of type {values.dtype} "
            f"and rank {values.ndim}, expected a vector of real numbers: one "
            "for each unit of the private data, neither summed nor averaged, "
            "so that each can be clipped."
        )
    if values.size == 1:
        raise ValueError(
            "score_fn returned a vector of length 1, expected one entry for "
            "each unit of the private data. A mean or a sum over units cannot "
            "be clipped unit by unit: return the scores of all units."
        )
    values = np.where(np.isfinite(values), values, -clip).astype(np.float64)
    # At most _STEPS in absolute value: a number over itself is 1.
    shares = np.clip(values, -clip, clip) / clip
    total = int(np.sum(np.trunc(shares * _STEPS).astype(np.int64)))
    size = float(plan.score_noise_multiplier or 0.0) * _STEPS
    if plan.neighboring_relation is _Relation.REPLACE_SPECIAL:
        size *= 2
    if plan.score_noise == "laplace":
        return total + floored_laplace(size)
    return total + floored_gaussian(size)


def _check_arguments(
    train_fn: Any, score_fn: Any, plan: Any, score_clip: Any
) -> None:
    for name, function in (("train_fn", train_fn), ("score_fn", score_fn)):
        if not callable(function):
            raise TypeError(f"{name} is {function!r}, expected a function.")
    if not isinstance(plan, SelectionPlan):
        raise TypeError(
            f"plan is {plan!r}, expected a SelectionPlan. Make one with "
            "selection_budget from the budget of the whole selection, or "
            "directly from what one run costs."
        )
    if (score_clip is None) != (plan.score_noise_multiplier is None):
        raise ValueError(
            f"score_clip is {score_clip!r} and score_noise_multiplier of the "
            f"plan is {plan.score_noise_multiplier!r}, expected both, for "
            "scores from private data, or none of them, for scores from public "
            "data."
        )
    if score_clip is not None:
        real = isinstance(score_clip, numbers.Real)
        if isinstance(score_clip, bool) or not real:
            raise TypeError(f"score_clip is {score_clip!r}, expected a number.")
        if not 1e-100 < score_clip < 1e100:
            raise ValueError(
                f"score_clip is {score_clip!r}, expected a number above 0: the "
                "largest absolute score of one unit."
            )


def _is_again(
    scored: _Scored, best: _Scored | None, revealed: list[_Scored]
) -> bool:
    """A model that is trained again would be a loser's, or unlike the first."""
    others = [*revealed, best] if best is not None else revealed
    same = any(
        other is not None and other.value is scored.value for other in others
    )
    return same and not isinstance(scored.value, _UNCHANGING)


def _trained_again(scored: _Scored) -> ValueError:
    scored.run._remove()
    return ValueError(
        f"train_fn returned the same {type(scored.value).__name__} twice. "
        "Every run has to build a new one: training one object again "
        "goes on from the run before, which no account covers. What was "
        "spent stays spent."
    )


def _spend(filter: PrivacyFilter, plan: SelectionPlan) -> None:
    if not isinstance(filter, PrivacyFilter):
        raise TypeError(f"filter is {filter!r}, expected a PrivacyFilter.")
    if filter.neighboring_relation is not plan.neighboring_relation:
        raise ValueError(
            f"The filter is for {filter.neighboring_relation}, but the runs "
            f"are private for {plan.neighboring_relation}. Make the filter "
            f"with neighboring_relation={plan.neighboring_relation}."
        )
    try:
        filter.spend(plan.event)
    except privacy_accountant.UnsupportedEventError:
        filter.spend(plan.approximate_event)
