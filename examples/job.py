"""A training job that can be killed at any time, and started again.

A job has a folder, and goes on with what it finds there:

    privacy.jsonl   what is paid for, before it is used
    checkpoints/    the last weights, with the optimizer's state
    logs/           for TensorBoard
    model.keras, privacy.txt, privacy.json   once it has ended

tpu_train.py and multi_worker_train.py say where it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import tempfile
import warnings
from typing import Any, NoReturn

import job_flags
import job_progress
import model as recommender
import numpy as np
import synthetic
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras

REFUSED = 2  # The exit status of argparse: starting again would not help.


def network(options: argparse.Namespace, log: synthetic.ClickLog) -> Any:
    """The model, with weights that nobody has trained."""
    return recommender.build(
        log.sizes,
        {
            name: ids.shape[1]
            for name, ids in log.features.items()
            if ids.ndim == 2
        },
        dimension=options.dimension,
        hidden=options.hidden,
    )


def compiled(
    options: argparse.Namespace, log: synthetic.ClickLog, plan: tsdp.PrivacyPlan
) -> Any:
    """The model as it is before the first step; to call in a scope.

    Raises:
      PrivacyStateError: The ledger belongs to another plan.
    """
    model = network(options, log)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(options.learning_rate),
        plan,
        clip_norm=options.clip_norm,
        mechanism=job_flags.MECHANISMS[options.mechanism](),
        ledger=options.folder / "privacy.jsonl",
    )
    model.compile(optimizer=optimizer, loss="binary_crossentropy")
    optimizer.build(model.trainable_variables)
    return model


def checkpoints(
    model: Any, options: argparse.Namespace, own: pathlib.Path
) -> tf.train.CheckpointManager:
    """Restores the newest checkpoint; gives what writes the next ones.

    `tf.train.Checkpoint`, since with both Kerases it has the optimizer's ledger
    and none of the metrics, reads and writes under any strategy, and is whole
    or not there: a file of BackupAndRestore can be cut short by a crash.

    Args:
      model: Has been compiled.
      options: The flags.
      own: Where this process writes; all of them read those of the first.

    Raises:
      PrivacyStateError, ValueError: The checkpoint is of something else.
    """
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    newest = tf.train.latest_checkpoint(str(options.folder / "checkpoints"))
    if newest is not None:
        checkpoint.restore(newest).assert_existing_objects_matched()
    return tf.train.CheckpointManager(
        checkpoint, str(own / "checkpoints"), max_to_keep=2
    )


def run(
    options: argparse.Namespace,
    strategy: tf.distribute.Strategy,
    *,
    workers: int = 1,
    chief: bool = True,
) -> None:
    """Trains from where the folder is until the plan is spent.

    Args:
      options: Of `job_flags.parser`.
      strategy: Where to run.
      workers: How many processes train together.
      chief: Whether this one writes to the folder. The others save the same in
        a place that is forgotten, since saving may take all of them.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        own = options.folder if chief else pathlib.Path(elsewhere)
        try:
            log = job_flags.click_log(options)
            training, held_out = log.split()
            plan = job_flags.plan_of(
                options, len(training), strategy.num_replicas_in_sync, workers
            )
            _check(options)
            with strategy.scope():
                model = compiled(options, training, plan)
                data = plan.sampling.dataset(
                    (training.features, training.labels)
                )
            manager = checkpoints(model, options, own)
            model.optimizer.agree(strategy)  # The ledger is the chief's.
        except (OSError, ValueError, tsdp.PrivacyStateError) as error:
            _refuse(str(error))
        _describe(options, training, held_out, plan, strategy)
        ended = options.folder / "privacy.json"
        if model.optimizer.compositions_left == 0 and ended.exists():
            print(
                f"has ended before\n\n{ended.with_suffix('.txt').read_text()}"
            )
        else:
            scalars = job_progress.Scalars(own / "logs") if chief else None
            _fit(options, model, data, manager, scalars, alone=workers == 1)
            _finish(options, model, own)
        if chief:
            _evaluate(options, model, held_out)


def _refuse(reason: str) -> NoReturn:
    print(f"refused: {reason}", file=sys.stderr)
    raise SystemExit(REFUSED)


def _check(options: argparse.Namespace) -> None:
    if options.checkpoint_every < 1:
        raise ValueError(
            f"--checkpoint-every is {options.checkpoint_every}, expected a "
            "number of steps."
        )
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "privacy.jsonl"
    if (folder / "checkpoints").exists() and not ledger.exists():
        raise tsdp.PrivacyStateError(
            f"{folder} has checkpoints but no {ledger.name}, so what was spent "
            "after the last of them is not known. Put the ledger back, or "
            "start a new job in another folder: its cost adds to that of this."
        )


def _describe(
    options: argparse.Namespace,
    training: synthetic.ClickLog,
    held_out: synthetic.ClickLog,
    plan: tsdp.PrivacyPlan,
    strategy: tf.distribute.Strategy,
) -> None:
    tables = (f"{name} ({rows:,})" for name, rows in training.sizes.items())
    print(
        f"{len(training):,} examples to train on, {len(held_out):,} held out; "
        f"tables {', '.join(tables)}\n"
        f"ε = {plan.epsilon:g}, δ = {plan.delta:g} over "
        f"{plan.num_compositions} steps take noise of "
        f"{plan.noise_multiplier:.3g} times the clip norm; replicas: "
        f"{strategy.num_replicas_in_sync}",
        flush=True,
    )
    if options.log_training_metrics:
        warnings.warn(
            "The loss on training examples is shown and logged. It is not "
            "private: keep this output and the logs as you keep the data.",
            tsdp.PrivacyWarning,
            stacklevel=2,
        )
    else:
        print("The loss on training examples is not private, and not shown.")


def _fit(
    options: argparse.Namespace,
    model: Any,
    data: tf.data.Dataset,
    manager: tf.train.CheckpointManager,
    scalars: job_progress.Scalars | None,
    alone: bool,
) -> None:
    """Takes the steps that are left; to be gone through again after a crash."""
    optimizer, every = model.optimizer, options.checkpoint_every
    steps = optimizer.plan.num_compositions
    taken = job_progress.number(optimizer.iterations)
    if optimizer.compositions_spent:
        print(
            f"going on after step {taken}; {optimizer.compositions_spent} of "
            f"{steps} steps are charged",
            flush=True,
        )
    if optimizer.compositions_left == 0:
        return
    told = job_progress.EndWhenTold()
    model.fit(
        data,
        # What Keras calls an epoch goes from one checkpoint to the next, and
        # so do blocks that are paid ahead: who is killed loses one of them.
        steps_per_epoch=every,
        epochs=math.ceil(steps / every),
        callbacks=[
            tsdp.PrivacyBudget(reserve=every),
            job_progress.Progress(
                manager, scalars, options.log_training_metrics
            ),
            # One of several workers must not stop while the others go on.
            *([told] if alone else []),
        ],
        shuffle=False,  # The sampling draws; Keras has nothing to shuffle.
        verbose=0,
    )
    if told.signal is not None and optimizer.compositions_left:
        print("ended as told; start it again to go on", flush=True)
        raise SystemExit(128 + told.signal)


def _finish(options: argparse.Namespace, model: Any, own: pathlib.Path) -> None:
    optimizer = model.optimizer
    taken = job_progress.number(optimizer.iterations)
    if not taken:
        _refuse(
            "The budget was spent before the first checkpoint: there is no "
            "model. Let --checkpoint-every be smaller in the next job."
        )
    model.reset_metrics()  # tf-keras would save what they were.
    model.save(own / "model.keras")
    statement = optimizer.privacy_statement()
    (own / "privacy.txt").write_text(f"{statement}\n")
    fields = json.dumps(statement.as_dict(), indent=2, ensure_ascii=False)
    # The last to be there, and whole: so one knows that the job has ended.
    (own / "privacy.part").write_text(fields + "\n")
    (own / "privacy.part").replace(own / "privacy.json")
    print(f"\n{statement}\n")
    print(
        f"{options.folder / 'model.keras'} written, with {taken} steps in its "
        f"weights and {optimizer.compositions_spent} charged"
    )


def _evaluate(
    options: argparse.Namespace, model: Any, held_out: synthetic.ClickLog
) -> None:
    """Prints how good the model is, by a copy that no strategy knows."""
    copy = network(options, held_out)
    copy.set_weights(model.get_weights())
    scores = []
    for first in range(0, len(held_out), 4096):
        rows = slice(first, first + 4096)
        features = {
            name: tf.constant(ids[rows])
            for name, ids in held_out.features.items()
        }
        scores.append(copy(features, training=False).numpy())
    found = np.concatenate(scores)
    print(
        "On held-out examples, of which this is a release that is not private: "
        f"AUC {synthetic.auc(held_out.labels, found):.4f}, "
        f"log loss {synthetic.log_loss(held_out.labels, found):.4f}"
    )
