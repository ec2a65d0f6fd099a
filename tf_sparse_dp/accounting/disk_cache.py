"""Answers of slow searches, kept in the user's cache directory.

Anybody who can write there can change them, and versions differ: an answer is
a guess, which whoever asks has to check before using it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

from tf_sparse_dp.version import __version__

# Names a directory, or switches the cache off if it is "off".
VARIABLE = "TF_SPARSE_DP_CACHE"
_LARGEST_FILE = 100_000  # Bytes; a foreign file may be anything.


def cache_directory() -> pathlib.Path | None:
    """Where answers are kept; None if nowhere."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        off = named.strip().lower() in ("", "off", "0", "no", "false")
        return None if off else pathlib.Path(named)
    try:
        home = pathlib.Path.home()
    except RuntimeError:  # Nobody's home.
        return None
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA", home))
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "tf_sparse_dp"


def _full(question: dict[str, Any]) -> str:
    try:
        accounting = importlib.metadata.version("dp-accounting")
    except importlib.metadata.PackageNotFoundError:
        accounting = "unknown"
    versions = {"tf_sparse_dp": __version__, "dp_accounting": accounting}
    return json.dumps({**question, "versions": versions}, sort_keys=True)


def _place(full: str) -> pathlib.Path | None:
    directory = cache_directory()
    if directory is None:
        return None
    name = hashlib.sha256(full.encode()).hexdigest()[:32]
    return directory / f"{name}.json"


def remembered(question: dict[str, Any]) -> float | None:
    """The number that was kept for this question, if there is one.

    Files that are not readable, or hold something else, are no answer.
    """
    full = _full(question)
    place = _place(full)
    if place is None:
        return None
    try:
        if place.stat().st_size > _LARGEST_FILE:
            return None
        kept = json.loads(place.read_text("utf-8"))
        same = kept["question"] == json.loads(full)
        answer = kept["answer"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    number = isinstance(answer, int | float) and not isinstance(answer, bool)
    return answer if same and number else None


def remember(question: dict[str, Any], answer: float) -> None:
    """Keeps the number; a directory that cannot be written is left alone."""
    full = _full(question)
    place = _place(full)
    if place is None:
        return
    text = json.dumps({"question": json.loads(full), "answer": answer})
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, place)
        except OSError:
            pathlib.Path(name).unlink(missing_ok=True)
