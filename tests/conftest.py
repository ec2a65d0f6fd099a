"""What all tests share: a quiet TensorFlow, fixed seeds, and the markers."""

from __future__ import annotations

import gc
import os
import pathlib
import random
from collections.abc import Iterator
from typing import Any

# Before TensorFlow is first imported, or it has no effect.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Its bfloat16 kernels kill the process on some virtual machines.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# Tests neither read nor leave anything in the user's cache directory.
os.environ["TF_SPARSE_DP_CACHE"] = "off"

import numpy as np
import pytest

# Importing TensorFlow leaves no garbage, however often one looks for it.
gc.disable()

MARKERS = {
    "once": "independent of Keras: left out of the run on tf-keras",
    "lane": "short; also run on the oldest and newest dependencies",
}

TESTS = pathlib.Path(__file__).parent

# Whole folders that hold no Keras, so that their files need not say so. Any
# other test runs under both Kerases unless it is marked.
ONCE = ("accounting",)
LANE = ("accounting",)
# Long, and about arithmetic of our own.
NOT_IN_LANES = ("test_never_exceeds.py", "test_adversary.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-table",
        action="store_true",
        help="write what came of the model cases to docs/models.md",
    )
    parser.addoption(
        "--graphs",
        type=int,
        default=500,
        help="how many random graphs to examine",
    )
    parser.addoption(
        "--sequences",
        type=int,
        default=30_000,
        help="how many sequences of releases to try on each filter",
    )
    parser.addoption(
        "--kill-points",
        type=int,
        default=5,
        help="how many trainings to kill",
    )
    parser.addoption(
        "--worker-kills",
        type=int,
        default=2,
        help="how often to kill one of the workers of a job",
    )
    parser.addoption(
        "--data",
        type=pathlib.Path,
        help="a file of real visits for the test of retrieval, as "
        "examples/visits.py reads it; generated data without",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in ONCE:
            item.add_marker(pytest.mark.once)
        if folder in LANE and item.path.name not in NOT_IN_LANES:
            item.add_marker(pytest.mark.lane)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Looks for garbage less often, and not in what stays for good.

    That is a third of a million objects, mostly of modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
    if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        _run_graphs_as_traced()


def _run_graphs_as_traced(as_traced: bool = True) -> bool:
    """Leaves out the rewriting of graphs before they first run.

    It takes a sixth of the time, and is the same under both Kerases: that
    nothing rests on it, the one shows, and that it does no harm, the other.

    Returns:
      Whether it was left out before.
    """
    import tensorflow as tf

    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: as_traced})
    return bool(before)


def pytest_terminal_summary(
    terminalreporter: Any, config: pytest.Config
) -> None:
    recorded = [
        (report, name, value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in getattr(report, "user_properties", ())
    ]
    for what in ("random graphs", "random models"):
        _print_counts(
            terminalreporter,
            what,
            [value for _, name, value in recorded if name == what],
        )
    if config.getoption("--write-table"):
        _write_table(
            {
                report.nodeid.partition("[")[2].removesuffix("]"): value
                for report, name, value in recorded
                if name == "outcome"
            }
        )


def _print_counts(
    terminalreporter: Any, what: str, parts: list[dict[str, Any]]
) -> None:
    """What came of all that was drawn at random, over all processes."""
    if parts:
        from tests.gradients.random_graphs.counting import Counts

        terminalreporter.write_line(f"{what}: {Counts.total(parts)}")


def _write_table(found: dict[str, str]) -> None:
    from tests import model_cases, model_table

    for case in model_cases.CASES:
        if case.only not in ("", model_cases.RUNNING):
            found[case.name] = case.outcome()
    model_table.write(
        [case.name for case in model_cases.CASES],
        found,
        model_cases.RUNNING,
        list(model_cases.KERASES),
    )


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Leaves what a file's tests made out of later searches for garbage.

    Tests that look for what is left of a model would else look at all that
    Keras and TensorFlow keep of hundreds of others, for a minute each.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def seeded() -> np.random.Generator:
    """Fixes every global seed and gives a generator for the test's own data."""
    import tensorflow as tf

    random.seed(0)
    np.random.seed(0)
    tf.keras.utils.set_random_seed(0)
    return np.random.default_rng(0)


@pytest.fixture
def as_traced() -> Iterator[None]:
    """Graphs are not rewritten; for tests of many that run but a few times."""
    before = _run_graphs_as_traced()
    yield
    _run_graphs_as_traced(before)


@pytest.fixture
def undeclared() -> Iterator[None]:
    """Forgets the rules that a test declares with `tf_sparse_dp.rules`."""
    from tf_sparse_dp.gradients.rules import declared, registry

    tables = (registry.TYPING, registry.FACTORING, registry.LIFTING)
    before = [dict(table) for table in tables]
    names = set(declared._DECLARED)
    yield
    for table, rules in zip(tables, before, strict=True):
        table.clear()
        table.update(rules)
    declared._DECLARED.clear()
    declared._DECLARED.update(names)
