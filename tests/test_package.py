"""What `pip install .` gives, and that its public names are explained."""

from __future__ import annotations

import inspect
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import tf_sparse_dp

pytestmark = [pytest.mark.once]

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "tf_sparse_dp"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel, built outside the tree so that nothing of the build stays."""
    source = tmp_path_factory.mktemp("source") / "clone"
    ignored = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "build", "dist", "demo"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    command += ["--no-build-isolation", "-w", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    names = {n for n in wheel.namelist() if ".dist-info/" not in n}
    expected = {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py")}
    assert names == expected | {"tf_sparse_dp/py.typed"}


def test_the_wheel_is_described(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
    metadata = wheel.read(name).decode()
    assert f"\nVersion: {tf_sparse_dp.__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (\w+)$", metadata, re.M))
    assert extras == {
        "privacy",
        "recommenders",
        "convex",
        "demo",
        "test",
        "dev",
    }
    assert any(n.endswith("/LICENSE") for n in wheel.namelist())


def test_devices_and_threads_can_be_chosen_after_the_import() -> None:
    """The first eager operation would end the time for that."""
    code = (
        "import tensorflow as tf, tf_sparse_dp\n"
        "tf.config.threading.set_intra_op_parallelism_threads(1)\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    missing = {f for f in folders if not (f / "__init__.py").exists()}
    assert not missing, "find: leaves these out of the wheel"


def public_names() -> list[str]:
    return [n for n in tf_sparse_dp.__all__ if not n.startswith("__")]


@pytest.mark.parametrize("name", public_names())
def test_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(tf_sparse_dp, name)
    assert inspect.getdoc(thing), f"{name} has no docstring"


@pytest.mark.parametrize("name", public_names())
def test_public_name_is_in_the_documents(name: str) -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pattern = re.compile(rf"\b{name}\b")
    assert any(pattern.search(d.read_text()) for d in documents), (
        f"{name} is public but neither README.md nor docs/ mentions it"
    )


def test_no_public_name_by_accident() -> None:
    modules = {p.stem for p in PACKAGE.iterdir()}
    reachable = {n for n in vars(tf_sparse_dp) if not n.startswith("_")}
    extra = reachable - set(tf_sparse_dp.__all__) - modules - {"annotations"}
    assert not extra, f"public but not in __all__: {sorted(extra)}"
