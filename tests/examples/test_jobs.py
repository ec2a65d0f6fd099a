"""Training jobs end with what they were given, however often they die."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

# Files and processes, and flags; what is saved is tested on both Kerases
# elsewhere.
pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS, EVERY = 500, 10
ITERATIONS = "optimizer/inner_optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import job

    return job


@pytest.fixture
def launcher(job: Any) -> Any:
    import multi_worker_train

    return multi_worker_train


def started(
    folder: pathlib.Path,
    flags: str = f"--tpu none --steps {STEPS} --checkpoint-every {EVERY}",
    script: str = "tpu_train.py",
) -> subprocess.Popen:
    flags += " --examples 3000 --batch-size 50 --table-sizes user=200 item=100"
    command = [sys.executable, EXAMPLES / script, f"--folder={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if script != "tpu_train.py":
        environment.pop("TF_USE_LEGACY_KERAS", None)  # It chooses by itself.
    return subprocess.Popen(
        [*command, *flags.split()],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen) -> str:
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, output + errors[-3000:]
    return output


def charged(folder: pathlib.Path) -> int:
    """Steps that are paid for, read without the library."""
    counts = {}
    *whole, _ = (folder / "privacy.jsonl").read_text().split("\n")
    for line in whole:
        _, record = json.loads(line)
        if record["kind"] == "reserve":
            counts[record["id"]] = record["count"]
        elif record["kind"] == "settle":
            counts[record["id"]] = record["used"]
    return sum(counts.values())


def taken(folder: pathlib.Path) -> int:
    """Steps that are in the newest checkpoint."""
    newest = tf.train.latest_checkpoint(folder / "checkpoints")
    return int(tf.train.load_variable(newest, ITERATIONS))


def logged(folder: pathlib.Path) -> dict[str, list[float]]:
    """What TensorBoard shows, in the order of steps."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in (folder / "logs").iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return {tag: [v for _, v in sorted(pts)] for tag, pts in found.items()}


def test_a_killed_job_ends_within_its_budget(tmp_path: pathlib.Path) -> None:
    first = started(tmp_path)
    for _ in range(6000):
        if (tmp_path / "checkpoints" / "checkpoint").exists():
            break
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    time.sleep(random.Random(0).random() / 3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    before, kept = charged(tmp_path), taken(tmp_path)
    assert kept <= before <= kept + EVERY
    names = [
        name
        for name, _ in tf.train.list_variables(
            tf.train.latest_checkpoint(tmp_path / "checkpoints")
        )
    ]
    assert not [n for n in names if "loss" in n or "metric" in n]

    output = printed(started(tmp_path))
    assert f"going on after step {kept}; {before} of {STEPS} steps" in output
    assert "AUC" in output
    # All that is left is used, and what was lost with the process stays lost.
    assert charged(tmp_path) == STEPS
    assert taken(tmp_path) == STEPS - (before - kept)
    statement = json.loads((tmp_path / "privacy.json").read_text())
    assert statement["private"]
    assert (statement["compositions"], statement["compositions_left"]) == (
        STEPS,
        0,
    )
    curves = logged(tmp_path)
    assert set(curves) == {"epsilon", "steps in the weights"}
    assert curves["epsilon"] == sorted(curves["epsilon"])
    assert curves["epsilon"][-1] == pytest.approx(statement["epsilon_spent"])

    files = ("privacy.jsonl", "model.keras", "privacy.json")
    whole = [(tmp_path / name).read_bytes() for name in files]
    assert (tmp_path / "privacy.txt").read_text() in printed(started(tmp_path))
    assert [(tmp_path / name).read_bytes() for name in files] == whole


def test_two_workers(tmp_path: pathlib.Path) -> None:
    # The last epoch of `fit` ends before its time.
    flags = "--local-workers 2 --restarts 0 --steps 15 --checkpoint-every 10"
    output = printed(started(tmp_path, flags, "multi_worker_train.py"))
    assert "2 workers draw" in output.replace("\n", " ")
    assert (charged(tmp_path), taken(tmp_path)) == (15, 15)
    assert "15 of 15 charged" in (tmp_path / "worker1.log").read_text()
    for name in ("model.keras", "privacy.json"):
        assert (tmp_path / name).exists()


def test_checkpoints_without_their_ledger_are_refused(
    job: Any, tmp_path: pathlib.Path
) -> None:
    options = job.job_flags.parser("").parse_args(["--folder", str(tmp_path)])
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(tsdp.PrivacyStateError, match="but no privacy"):
        job._check(options)


@pytest.mark.parametrize("replicas", [1, 7])
def test_replicas_share_batches_evenly(job: Any, replicas: int) -> None:
    options = job.job_flags.parser("").parse_args(
        ["--folder=job", "--batch-size=10", "--steps=3"]
    )
    plan = job.job_flags.plan_of(options, 1000, replicas, workers=1)
    assert plan.sampling.max_batch_size % replicas == 0
    assert (plan.num_compositions, plan.delta) == (3, 1e-4)


def test_table_sizes(job: Any) -> None:
    flags = ["--folder=job", "--examples=500", "--table-sizes"]
    options = job.job_flags.parser("").parse_args(
        [*flags, "user=300", "hour=100"]
    )
    assert job.job_flags.click_log(options).sizes["hour"] == 100
    for wrong in ("hour=5", "nothing=5"):
        options = job.job_flags.parser("").parse_args([*flags, wrong])
        with pytest.raises(ValueError, match=wrong):
            job.job_flags.click_log(options)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        (None, None, (1, True)),
        ({"worker": ["a:1"]}, ("worker", 0), (1, True)),
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), (2, True)),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), (2, False)),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("chief", 0), (2, True)),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("worker", 0), (2, False)),
    ],
)
def test_who_is_the_chief(
    launcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Any,
    task: Any,
    expected: tuple[int, bool],
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if cluster is not None:
        named = {"type": task[0], "index": task[1]}
        config = json.dumps({"cluster": cluster, "task": named})
        monkeypatch.setenv("TF_CONFIG", config)
    assert launcher.cluster() == expected


# A worker that does what a file says at each of its starts.
WORKER = """
import json, os, pathlib, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
starts = pathlib.Path(sys.argv[1]) / f"starts{index}"
with starts.open("a") as file:
    file.write("x")
number = len(starts.read_text())
other = starts.with_name(f"starts{1 - index}")
while not other.exists() or len(other.read_text()) < number:
    time.sleep(0.01)  # Until the other one has started, too.
what = sys.argv[2 + index].split(",")[number - 1]
time.sleep(100) if what == "hang" else sys.exit(int(what))
"""


@pytest.mark.parametrize(
    ("first", "second", "restarts", "status", "starts"),
    [
        ("0", "0", 3, 0, 1),
        ("1,0", "hang,0", 3, 0, 2),  # Whoever is left is started again, too.
        ("hang,1,1", "1,hang,hang", 2, 1, 3),
        ("2", "hang", 3, 2, 1),  # Refused: the next time would be the same.
    ],
)
def test_workers_are_started_again(
    launcher: Any,
    tmp_path: pathlib.Path,
    first: str,
    second: str,
    restarts: int,
    status: int,
    starts: int,
) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), first, second]
    found = launcher.supervise(command, 2, restarts, tmp_path)
    assert found == status
    for index in range(2):
        assert len((tmp_path / f"starts{index}").read_text()) == starts
