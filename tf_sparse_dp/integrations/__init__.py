"""What other libraries' users need to train privately."""

from __future__ import annotations

import importlib
from typing import Any

from tf_sparse_dp.integrations import recommenders

__all__ = ["recommenders", "tf_privacy"]


def __getattr__(name: str) -> Any:
    # Imports TensorFlow Privacy, which few have: only when it is asked for.
    if name == "tf_privacy":
        return importlib.import_module("tf_sparse_dp.integrations.tf_privacy")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
