"""What an optimizer saves and loads: nothing that was spent is forgotten."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, NoReturn

import numpy as np

from tf_sparse_dp import mechanisms, sampling
from tf_sparse_dp.accounting import filters
from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selected import Selected
from tf_sparse_dp.errors import PrivacyStateError
from tf_sparse_dp.optimizers.accounts import described
from tf_sparse_dp.optimizers.core import PrivateStep
from tf_sparse_dp.optimizers.record import Record
from tf_sparse_dp.optimizers.spending import Spending
from tf_sparse_dp.optimizers.table_rules import TableRule
from tf_sparse_dp.optimizers.trained_before import Trainer
from tf_sparse_dp.sampling.workers import Share

_LEDGER = "ledger"  # Where it is among saved variables.


class SavedState:
    """Saves and loads variables, ledger and configuration, as Keras asks.

    A part of `PrivateWrapper`, which has what the attributes name.
    """

    inner_optimizer: Any
    built: bool
    _keras: Any
    _private: PrivateStep
    _spending: Spending
    _record: Record
    _file: LedgerFile | None
    _tables: TableRule
    _share: Share
    _compositions: Any
    _trainer: Trainer
    _lost_state = ""  # Why nothing can be said of what was spent.
    _loaded: list[Any] | None = None  # Until there are variables.

    def ledger(self) -> Ledger:
        """Every release so far, of earlier runs that were loaded included.

        With a ledger file, also those of all others that pay in it, and what
        they, and this run, have reserved.
        """
        self._check_state()
        ledger = self._record.ledger()
        if self._file is not None:
            ledger = ledger.merge(self._file.ledger())
        return ledger

    def _check_state(self) -> None:
        if self._lost_state:
            raise PrivacyStateError(self._lost_state)

    def _lose(self, reason: str) -> NoReturn:
        """Takes no more steps; Keras may catch what is raised here."""
        self._lost_state = reason
        raise PrivacyStateError(reason)

    def _saved_ledger(self) -> str:
        """What is saved of this run, and of others that its filter paid."""
        self._check_state()
        ledgers = [self._record.ledger()]
        plan = self._private.plan
        if isinstance(plan, AdaptivePlan):
            known = {run.id for run in ledgers[0].runs}
            others = plan.filter.entries_of_others(known)
            ledgers.append(
                Ledger(ledgers[0].header, others, run=plan.filter.id)
            )
        return json.dumps([ledger.to_json() for ledger in ledgers])

    def _load_ledger(self, text: str) -> None:
        """Takes over what was saved, or takes no more steps."""
        plan = self._private.plan
        try:
            ledger, *others = map(Ledger.from_json, json.loads(text))
            self._spending.take_over(self._record.load(ledger))
            for other in others:
                other.check_belongs(ledger.header)
                if isinstance(plan, AdaptivePlan) and (
                    other.runs[0].id != plan.filter.id
                ):
                    self._spending.charge(other)
        except BaseException as error:  # Keras may catch what is raised.
            if isinstance(error, PrivacyStateError):
                self._lose(str(error))
            self._lost_state = (
                f"A saved state could not be taken over ({error!r}), so that "
                "what was spent is not known. Make an optimizer anew, and load "
                "into that."
            )
            raise
        self._trainer.loaded.update(
            {run.id: run.num_events for run in ledger.runs}
        )
        self._private.was_seeded |= ledger.was_seeded

    def _load(self, values: list[Any]) -> None:
        """Takes over saved variables; later, if they do not exist yet."""
        if not self.built and values and np.shape(values[0]) == ():
            self._raise_count(values[0])
            self._loaded = [np.array(value) for value in values]
            return
        variables = self.variables  # type: ignore[attr-defined]
        shapes = [tuple(variable.shape) for variable in variables]
        if [np.shape(value) for value in values] != shapes:
            self._lose(
                f"Saved optimizer state with {len(values)} variables does not "
                f"fit this optimizer with {len(variables)}, so what was spent "
                "is not known. Use the same model, inner optimizer and options "
                "as the run that saved it, or load a format that carries "
                "optimizer state (.keras, tf.train.Checkpoint)."
            )
        for variable, value in zip(variables, values, strict=True):
            if variable is self._compositions:
                self._raise_count(value)
            else:
                variable.assign(value)

    def _raise_count(self, saved: Any) -> None:
        """Takes over a count, which alone does not say what was spent."""
        count = int(np.asarray(saved))
        known = max(self._spending.count(), self._record.ledger().num_events)
        if count > known and isinstance(self._private.plan, AdaptivePlan):
            self._lose(
                f"{count} steps were loaded, of which {known} are in a ledger: "
                "what the others cost is not known, and the filter cannot be "
                "charged. Load a format that carries the ledger: .keras, "
                ".weights.h5 or tf.train.Checkpoint."
            )
        self._spending.raise_count(count)

    def _load_deferred(self) -> None:
        if self._loaded is not None:
            values, self._loaded = self._loaded, None
            self._load(values)

    def save_own_variables(self, store: Any) -> None:
        self._check_state()
        self._spending.raise_refusals()
        self._spending.raise_count()
        super().save_own_variables(store)  # type: ignore[misc]
        store[_LEDGER] = np.frombuffer(self._saved_ledger().encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        names = set(store.keys())
        if _LEDGER not in names:
            self._lose(
                "The saved optimizer state has no ledger, so what was spent "
                "is not known. Load a state that DPSparseOptimizer saved; for "
                "weights alone, load the model with compile=False."
            )
        saved = bytes(np.asarray(store[_LEDGER]))
        self._load_ledger(saved.decode(errors="replace"))
        self._load([store[str(i)] for i in range(len(names) - 1)])

    def set_weights(self, weights: list[Any]) -> None:
        self._load(list(weights))

    def get_config(self) -> dict[str, Any]:
        step = self._private
        config: dict[str, Any] = {
            "name": self.name,  # type: ignore[attr-defined]
            "inner_optimizer": self._keras.optimizers.serialize(
                self.inner_optimizer
            ),
            "clip_norm": step.clip_norm,
            "mechanism": described(step.mechanism),
            "released_by": step.released_by,
            "examples_per_unit": step.examples_per_unit,
            "loss_reduction": step.loss_reduction,
        }
        if self._spending.count() or step.was_seeded:
            # A SavedModel of tf-keras keeps the configuration but no variables
            # of the optimizer.
            config["ledger"] = self._saved_ledger()
        if self._tables.given is not None:
            config["tables"] = self._tables.get_config()
        if self._file is not None:
            config["ledger_file"] = self._file.path
        if step.declared_rules:
            config["declared_rules"] = sorted(step.declared_rules)
        if self._trainer.selected is not None:
            config["selected"] = dataclasses.asdict(self._trainer.selected)
        plan = step.plan
        if plan is None:
            config["noise_multiplier"] = step.noise_multiplier
            config["expected_batch_size"] = step.expected_batch_size
            return config
        config["sampling"] = described(plan.sampling)
        if isinstance(plan, AdaptivePlan):
            config["noise_multiplier"] = step.noise_multiplier_now
            config["filter"] = described(plan.filter)
        else:
            config["plan"] = plan.get_config()
        return config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> Any:
        config = dict(config)
        config["inner_optimizer"] = cls._keras.optimizers.deserialize(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        if "tables" in config:
            config["tables"] = TableRule.from_config(
                cls._keras, config["tables"], custom_objects
            )
        config["mechanism"] = _made(config["mechanism"], mechanisms)
        if "sampling" in config:
            config["sampling"] = _made(config["sampling"], sampling)
        if "plan" in config:
            config["plan"] = PrivacyPlan.from_config(
                config["plan"], sampling=config.pop("sampling")
            )
        elif "filter" in config:
            config["plan"] = _made(config.pop("filter"), filters)
        ledger = config.pop("ledger", None)
        file = config.pop("ledger_file", None)
        if file is not None and os.path.exists(file):
            config["ledger"] = file
        released_by = config.pop("released_by", "")
        declared_rules = config.pop("declared_rules", ())
        selected = config.pop("selected", None)
        optimizer = cls(**config)
        if released_by:
            optimizer._private.released_by = released_by
        optimizer._private.declared_rules.update(declared_rules)
        if selected is not None:
            optimizer._trainer.selected = Selected(**selected)
        if ledger is not None:
            optimizer._load_ledger(ledger)
        kept_here = optimizer._share.worker == 0  # Others have no ledger.
        if file is not None and kept_here and "ledger" not in config:
            optimizer._lost_state = (
                f"The saved optimizer paid in {file}, which is not there: what "
                "was paid after it was saved is not known. Put the file back; "
                "or load with compile=False, and compile with "
                "DPSparseOptimizer(..., ledger=...) where the file is now."
            )
        return optimizer


def _made(description: dict[str, Any], module: Any) -> Any:
    name = description["class_name"]
    found = getattr(module, name, None)
    # One's own class may have the name of one of ours, and promise less.
    saved = description.get("module", getattr(found, "__module__", None))
    if found is None or found.__module__ != saved:
        raise ValueError(
            f"The saved optimizer has a {name} of {saved}, which this library "
            "cannot make. Load the model with compile=False, compile it with "
            "an optimizer made anew, and restore its state from a checkpoint, "
            "which keeps what was spent."
        )
    if hasattr(found, "from_config"):
        return found.from_config(description["config"])
    return found(**description["config"])
