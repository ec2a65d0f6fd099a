"""Short tests on other versions of what the library rests on, and of the wheel.

`make lanes` runs all of it; `.venv/bin/nox -s tensorflow_2.18` a part.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess

import nox

nox.options.envdir = ".lanes"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


def python(*wanted: str) -> str:
    """The first of these versions that is at hand, pyenv's among them."""
    for version in wanted:
        found = pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin")
        for folder in ["", *found]:
            path = str(pathlib.Path(folder, f"python{version}"))
            # Some are there and only say that they are not chosen.
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [path, "-c", ""], check=True, capture_output=True
                )
                return path
    raise SystemExit(f"No Python {' or '.join(wanted)} was found.")


# The oldest and the newest of all, and one between: what is installed, and on
# which Python.
LANES = {
    "tensorflow_2.16": (
        ("tensorflow==2.16.*", "keras<3.4", "tf-keras==2.16.*"),
        "dp-accounting==0.4.3",
        python("3.10", "3.11"),
    ),
    "tensorflow_2.18": (
        ("tensorflow==2.18.*", "keras<3.8", "tf-keras==2.18.*"),
        "dp-accounting==0.5.*",
        python("3.12", "3.11"),
    ),
    "tensorflow_2.21": (
        ("tensorflow==2.21.*", "tf-keras==2.21.*"),
        "dp-accounting==0.6.*",
        python("3.13", "3.12", "3.11"),
    ),
}


def lane(session: nox.Session) -> None:
    """What is marked `lane`, on Keras 3 and on tf-keras."""
    frameworks, accounting, _ = LANES[session.name]
    tools = "pytest", "pytest-xdist"
    session.install("-q", *tools, "-e", ".", *frameworks, accounting)
    tests = "python", "-m", "pytest", "-q", "-n", "2", *session.posargs
    session.run(*tests, "-m", "lane")
    session.run(
        *(*tests, "-m", "lane and not once"), env={"TF_USE_LEGACY_KERAS": "1"}
    )


for name, (*_, interpreter) in LANES.items():
    nox.session(lane, name=name, python=interpreter)


@nox.session(python=python("3.11"))
def package(session: nox.Session) -> None:
    """The wheel and the source, as a registry and a user would take them."""
    session.install("-q", "build", "twine", "check-wheel-contents")
    folder = session.create_tmp()
    session.run("python", "-m", "build", "-q", "--outdir", folder, ".")
    built = [str(path) for path in pathlib.Path(folder).glob("tf_sparse_dp-*")]
    session.run("twine", "check", "--strict", *built)
    (wheel,) = (path for path in built if path.endswith(".whl"))
    session.run("check-wheel-contents", wheel)
