"""The direction of imports, read off the syntax tree of every file.

errors, local_variable <- random_keys
  <- random_tails, compiled, exact_draws, object_names
  <- sampling, gradients, accounting <- mechanisms, distribute
  <- optimizers, layers, convex, mean_estimation
  <- integrations, callbacks, private_selection, audit, cli
"""

from __future__ import annotations

import ast
import pathlib

import pytest

pytestmark = [pytest.mark.once]

PACKAGE = pathlib.Path(__file__).parent.parent / "tf_sparse_dp"

RANKS = (
    ("errors", "version", "local_variable"),
    ("random_keys",),
    ("random_tails", "compiled", "exact_draws", "object_names"),
    ("sampling", "gradients", "accounting", "theory"),
    ("mechanisms", "distribute"),
    ("optimizers", "layers", "convex", "mean_estimation"),
    ("traced_step", "numerical"),
    ("probe",),
    (
        "audit",
        "integrations",
        "callbacks",
        "iterates",
        "private_selection",
        "selected_models",
        "cli",
        "explanation",
        "separability",
        "rules",
    ),
    ("__init__",),
)
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
# Neighbours of one rank may know each other only from here upwards.
FIRST_SOCIABLE_RANK = 5

TENSORFLOW_FREE = {
    "accounting",
    "theory",
    "errors",
    "version",
    "exact_draws",
    "object_names",
    "private_selection",
    "selected_models",
}
TENSORFLOW = {"tensorflow", "keras", "tf_keras", "tensorflow_privacy"}


def imported_names(tree: ast.AST, module: str, is_package: bool) -> set[str]:
    """Dotted names of every module that the source may import, anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + is_package]
                origin = ".".join(above + ([node.module] if origin else []))
            # "from a import b" may import the module a.b.
            names.update(f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            if name in ("import_module", "__import__") and node.args:
                literal = node.args[0]
                constant = isinstance(literal, ast.Constant)
                names.add(str(literal.value) if constant else "<computed>")
    return names


def violations(
    module: str, source: str, *, is_package: bool = False
) -> list[str]:
    """What in the source of the dotted module breaks the direction."""
    part = [*module.split("."), "__init__"][1]
    if part not in RANK:
        return [f"{module}: {part} has no place in the order of imports"]
    found = []
    for name in sorted(imported_names(ast.parse(source), module, is_package)):
        steps = name.split(".")
        if name == "<computed>":
            found.append(f"{module}: imports a computed name")
        elif steps[0] in TENSORFLOW and part in TENSORFLOW_FREE:
            found.append(f"{module}: {part} is free of TensorFlow, not {name}")
        elif steps[0] == "tf_sparse_dp" and part != "__init__":
            other = [*steps, "__init__"][1]
            # "from tf_sparse_dp import PrivacyPlan": by way of the top.
            above = RANK.get(other, RANK["__init__"])
            social = above >= FIRST_SOCIABLE_RANK
            allowed = other == part or above < RANK[part]
            if not (allowed or (social and above == RANK[part])):
                found.append(f"{module}: {part} must not import {name}")
    return found


def all_sources() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize(
    "path", all_sources(), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_direction(path: pathlib.Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    assert not violations(module, path.read_text(), is_package=is_package)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sampling.poisson", "from tf_sparse_dp.accounting import plan"),
        ("sampling.poisson", "import tf_sparse_dp.gradients.types as t"),
        ("sampling.poisson", "from ..accounting import plan"),
        ("gradients.clipping", "from .. import sampling"),
        ("gradients.clipping", "def f():\n  from ..sampling import padding"),
        ("accounting.plan", "from tf_sparse_dp import PoissonSampling"),
        ("accounting.plan", "import tensorflow as tf"),
        ("accounting.plan", "def f():\n  from keras import ops"),
        ("mechanisms.gaussian", "from tf_sparse_dp.optimizers import core"),
        ("errors", "from tf_sparse_dp.version import nothing_of_its_rank"),
        ("random_keys", "from tf_sparse_dp.sampling import poisson"),
        ("optimizers.core", "from tf_sparse_dp.callbacks import PrivacyBudget"),
        ("optimizers.core", "import tf_sparse_dp"),
        (
            "mechanisms.gaussian",
            "import importlib\nimportlib.import_module('tf_sparse_dp.cli')",
        ),
        ("mechanisms.gaussian", "__import__('tf_sparse_' + 'dp.cli')"),
        ("utils", "x = 1"),
    ],
)
def test_the_checker_rejects(module: str, source: str) -> None:
    assert violations(f"tf_sparse_dp.{module}", source)


def test_the_checker_resolves_relative_imports_of_packages() -> None:
    package = "tf_sparse_dp.sampling"
    inner = "from .poisson import PoissonSampling"
    assert not violations(package, inner, is_package=True)
    across = "from ..accounting import plan"
    assert violations(package, across, is_package=True) == [
        f"{package}: sampling must not import tf_sparse_dp.accounting.plan"
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sampling.poisson", "from tf_sparse_dp.errors import PrivacyWarning"),
        ("sampling.poisson", "from .padding import VALIDITY_DTYPE"),
        ("accounting.plan", "import dp_accounting\nimport numpy"),
        ("mechanisms.gaussian", "from tf_sparse_dp import random_keys"),
        ("optimizers.core", "from tf_sparse_dp.gradients import analysis"),
        ("callbacks", "from tf_sparse_dp.optimizers import core"),
    ],
)
def test_the_checker_accepts(module: str, source: str) -> None:
    assert not violations(f"tf_sparse_dp.{module}", source)
