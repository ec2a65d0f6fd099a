"""Ledger files: on disk before a release, whole after a crash, never less."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import random
import resource
import select
import signal
import threading
import time

import dp_accounting
import pytest

from tf_sparse_dp.accounting import chained_file
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

STEP = dp_accounting.GaussianDpEvent(2.0)
OTHER = dp_accounting.LaplaceDpEvent(3.0)


def header(**changes) -> LedgerHeader:
    facts = {
        "account": {"class_name": "PrivacyPlan", "config": {"delta": 1e-7}},
        "neighbouring_relation": "add_or_remove_one",
    }
    return LedgerHeader(**(facts | changes))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def charged(path, **arguments):
    return LedgerFile(path, header(), **arguments).ledger().entries


def test_reserves_settles_and_remembers(path):
    file = LedgerFile(path, header())
    first = file.reserve(STEP, 10)
    second = file.reserve(OTHER, 5)
    assert charged(path) == [(STEP, 10), (OTHER, 5)]
    file.settle(second, 0)
    file.settle(first, 4)
    file.compose(OTHER, 2)
    assert charged(path) == [(STEP, 4), (OTHER, 2)]
    assert file.num_events == LedgerFile(path, header()).num_events == 6
    file.ledger().check_belongs(header())
    file.ledger().verify()


def test_of_a_process_that_died_everything_stays_charged(path):
    LedgerFile(path, header()).reserve(STEP, 10)
    file = LedgerFile(path, header())
    assert file.num_events == 10
    reservation = file.reserve(STEP, 10)
    other = LedgerFile(path, header())
    with pytest.raises(PrivacyStateError, match="not reserved by this object"):
        other.settle(reservation, 0)
    with pytest.raises(ValueError, match="at most the 10"):
        file.settle(reservation, 11)
    file.settle(reservation, 1)
    with pytest.raises(PrivacyStateError, match="settled already"):
        file.settle(reservation, 0)
    assert other.num_events == 11


def test_a_limit_holds_for_all_together(path):
    one = LedgerFile(path, header(), limit=100)
    two = LedgerFile(path, header(), limit=100)
    block = one.reserve(STEP, 70)
    with pytest.raises(BudgetExhausted, match="room for 30"):
        two.reserve(STEP, 31)
    assert two.reserve(STEP, 31, at_least=1).count == 30
    with pytest.raises(BudgetExhausted):
        one.reserve(STEP, 1)
    one.settle(block, 60)
    assert two.reserve(STEP, 31, at_least=1).count == 10
    assert one.num_events == 100
    with pytest.raises(PrivacyStateError, match="limit is 101 here and 100"):
        LedgerFile(path, header(), limit=101)


def test_cannot_be_copied(path):
    file = LedgerFile(path, header(), limit=100)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            act(file)


def test_another_plan_is_refused(path):
    LedgerFile(path, header()).reserve(STEP)
    with pytest.raises(PrivacyStateError, match="unit is 'user' here"):
        LedgerFile(path, header(unit="user"))


def filled(path) -> bytes:
    file = LedgerFile(path, header())
    block = file.reserve(STEP, 10)
    file.reserve(OTHER, 5)
    file.settle(block, 4)
    return path.read_bytes()


def test_every_changed_byte_is_refused(path):
    data = filled(path)
    source = random.Random(0)
    for place in range(len(data)):
        others = {data[place] ^ (1 << source.randrange(8))}
        if place % 5 == 0 or data[place] == ord(","):
            others.add(ord("\n"))
        for other in others - {data[place]}:
            path.write_bytes(data[:place] + bytes([other]) + data[place + 1 :])
            with pytest.raises(PrivacyStateError):
                LedgerFile(path, header())


def test_lines_removed_or_exchanged_are_refused(path):
    lines = filled(path).splitlines(keepends=True)
    for wrong in (
        lines[:1] + lines[2:],
        [lines[0], lines[2], lines[1], lines[3]],
        lines[1:],
        lines + lines[-1:],
        [*lines, b"\n"],
        [*lines[:2], b"\n", *lines[2:]],
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(PrivacyStateError, match="not as it was written"):
            LedgerFile(path, header())


def test_a_torn_last_line_is_passed_over_and_removed(path):
    data = filled(path)
    before = data[: data[:-1].rindex(b"\n") + 1]
    for length in range(len(before), len(data)):
        path.write_bytes(data[:length])
        entries = [(STEP, 10), (OTHER, 5)]
        if length == len(data) - 1:  # Only the end of the line is missing.
            entries[0] = (STEP, 4)
        assert charged(path) == entries
        assert path.read_bytes() == data[:length]
        file = LedgerFile(path, header())
        file.settle(file.reserve(OTHER, 7), 6)
        assert charged(path) == [*entries, (OTHER, 6)]
        assert path.read_bytes().startswith(before)
    zeros = data + bytes(100)  # A file system may leave those after a crash.
    path.write_bytes(zeros)
    LedgerFile(path, header()).reserve(STEP, 3)
    assert LedgerFile(path, header()).num_events == 9 + 3


@pytest.mark.parametrize("text", [b"", b"[", b"hello", b"hello\n", b"[1]\n"])
def test_what_is_no_ledger_is_neither_read_nor_changed(path, text):
    path.write_bytes(text)
    with pytest.raises(PrivacyStateError):
        LedgerFile(path, header())
    assert path.read_bytes() == text


def test_a_forged_but_consistent_line_must_still_make_sense(path):
    lines = filled(path).splitlines()
    reserved = json.loads(lines[1])[1]
    for record in (
        {"kind": "settle", "id": reserved["id"], "used": 0},  # Again.
        {"kind": "settle", "id": "unknown", "used": 0},
        {"kind": "refund", "id": reserved["id"]},
        reserved,
        reserved | {"id": "new", "count": -3},
        reserved | {"id": "new", "event": {"class_name": "os", "config": {}}},
    ):
        digest = chained_file.chained(json.loads(lines[-1])[0], record)
        line = chained_file.canonical_json([digest, record])
        path.write_bytes(b"\n".join([*lines, line.encode(), b""]))
        with pytest.raises(PrivacyStateError, match="Line 5"):
            LedgerFile(path, header())


def test_removed_cut_or_replaced_while_in_use(path):
    file = LedgerFile(path, header())
    start = path.read_bytes()
    file.reserve(STEP, 5)
    path.write_bytes(start)
    with pytest.raises(PrivacyStateError, match="replaced or cut"):
        file.reserve(STEP, 5)
    path.unlink()
    with pytest.raises(PrivacyStateError, match="was removed"):
        file.reserve(STEP, 5)
    LedgerFile(path, header())
    with pytest.raises(PrivacyStateError, match="replaced or cut"):
        file.reserve(STEP, 5)


def test_an_older_copy_is_told_by_a_digest_kept_elsewhere(path):
    file = LedgerFile(path, header())
    file.reserve(STEP, 5)
    older = path.read_bytes()
    file.reserve(STEP, 5)
    digest = file.digest
    file.reserve(STEP, 5)
    LedgerFile(path, header()).check_contains(digest)
    path.write_bytes(older)
    copy = LedgerFile(path, header())  # By itself it looks as it once did.
    with pytest.raises(PrivacyStateError, match="older copy"):
        copy.check_contains(digest)


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_reserves_nothing(path, monkeypatch, failing):
    file = LedgerFile(path, header())
    block = file.reserve(STEP, 5)
    data = path.read_bytes()
    write = os.write

    def fail(descriptor, text=b""):
        if isinstance(text, bytes) and text:
            write(descriptor, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        for act in (
            lambda: file.reserve(STEP, 5),
            lambda: file.settle(block, 2),
            lambda: file.compose(STEP, 5),
        ):
            with pytest.raises(PrivacyStateError, match="No space left"):
                act()
            assert path.read_bytes() == data
        # Not even what was half written can be taken back.
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(PrivacyStateError, match="No space left"):
            file.reserve(STEP, 5)
    assert file.num_events >= 5
    before = file.num_events
    file.settle(block, 2)
    assert file.num_events == LedgerFile(path, header()).num_events
    assert file.num_events == before - 3


def test_a_real_limit_on_the_size_reserves_nothing(path):
    file = LedgerFile(path, header())
    file.reserve(STEP, 5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = path.stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        with pytest.raises(PrivacyStateError, match="File too large"):
            file.reserve(STEP, 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.stat().st_size == size
    file.reserve(STEP, 5)
    assert file.num_events == 10


def test_a_file_that_cannot_be_written_reserves_nothing(path, monkeypatch):
    file = LedgerFile(path, header())
    opened = os.open

    def refuse(name, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PrivacyStateError, match="Read-only file system"):
        file.reserve(STEP, 5)
    assert file.num_events == 0
    missing = path.parent / "nowhere" / "ledger.jsonl"
    with pytest.raises(PrivacyStateError, match="nowhere does not exist"):
        LedgerFile(missing, header())


def test_a_path_is_that_of_a_file(path):
    with pytest.raises(PrivacyStateError, match="which is a folder"):
        LedgerFile(path.parent, header())
    for wrong in (None, 3, header(), b"bytes"):
        with pytest.raises(TypeError, match=r"path is .* expected the path"):
            LedgerFile(wrong, header())


@pytest.mark.parametrize(
    "data", [b"user,item\n1,2\n", b"{}\n", b"[1, 2]", b"PNG", b"\xff\x00\n"]
)
def test_a_file_that_never_was_a_ledger(path, data):
    path.write_bytes(data)
    with pytest.raises(PrivacyStateError, match=r"is not a ledger file.*new"):
        LedgerFile(path, header())
    assert path.read_bytes() == data


def test_another_plans_file_says_whose_it_is(path):
    plan = {"epsilon": 3.0, "delta": 1e-6, "noise_multiplier": 0.8}
    account = {"class_name": "PrivacyPlan", "config": plan}
    LedgerFile(path, header(account=account, noise="laplace"))
    with pytest.raises(PrivacyStateError, match="belongs to something") as info:
        LedgerFile(path, header())
    assert (
        "else, PrivacyPlan(epsilon=3.0, delta=1e-06, noise_multiplier=0.8, "
        "noise='laplace'): account.config.delta is" in str(info.value)
    )


def test_without_locks_there_is_no_file(path, monkeypatch):
    monkeypatch.setattr(chained_file, "fcntl", None)
    with pytest.raises(PrivacyStateError, match=r"no fcntl\.flock"):
        LedgerFile(path, header())
    assert not path.exists()


def test_an_event_that_cannot_be_read_back_is_not_written(path):
    file = LedgerFile(path, header())
    with pytest.raises(TypeError):
        file.reserve(dp_accounting.DpEvent(), 1)
    deep = STEP
    for _ in range(5000):
        deep = dp_accounting.SelfComposedDpEvent(deep, 1)
    with pytest.raises((RecursionError, PrivacyStateError)):
        file.reserve(deep, 1)
    assert LedgerFile(path, header()).num_events == 0


def work(path, writing, seed):
    """Reserves, releases and settles until the limit; says what it released."""
    file = LedgerFile(path, header(), limit=600)
    source = random.Random(seed)
    while True:
        try:
            block = file.reserve(STEP, source.randint(1, 9), at_least=1)
        except BudgetExhausted:
            return
        used = source.randint(0, block.count)
        os.write(writing, b"x" * used)
        file.settle(block, used)


def forked(function, *arguments) -> int:
    """Without TensorFlow's import, and without what pytest does at exit."""
    process = os.fork()
    if not process:
        status = 1
        try:
            function(*arguments)
            status = 0
        finally:
            os._exit(status)
    return process


def test_two_processes_never_overspend_and_spend_all(path):
    reading, writing = os.pipe()
    start, starting = os.pipe()
    file = LedgerFile(path, header(), limit=600)

    def wait_and_work(seed):
        os.close(starting)
        os.read(start, 1)  # Returns when nobody can write any more.
        work(path, writing, seed)

    workers = [forked(wait_and_work, seed) for seed in range(2)]
    os.close(start)
    os.close(starting)
    status = [os.waitpid(worker, 0)[1] for worker in workers]
    os.close(writing)
    released = len(os.read(reading, 1 << 16))
    os.close(reading)
    assert status == [0, 0]
    assert released == file.num_events
    assert 0.99 * 600 <= released <= 600
    runs = [run for run in file.ledger().runs if run.entries]
    assert len(runs) == 2, "one process did all before the other began"


def test_a_fork_is_a_process_of_its_own(path):
    reading, writing = os.pipe()
    file = LedgerFile(path, header(), limit=100)
    block = file.reserve(STEP, 10)

    def child():
        try:
            file.settle(block, 0)
        except PrivacyStateError:
            os.write(writing, b"refused")
        file.settle(file.reserve(STEP, 20), 5)

    _, status = os.waitpid(forked(child), 0)
    assert status == 0
    assert os.read(reading, 100) == b"refused"
    os.close(reading)
    os.close(writing)
    file.settle(block, 7)
    assert file.num_events == 12
    assert sorted(run.num_events for run in file.ledger().runs) == [0, 5, 7]


def test_threads_share_a_file(path):
    file = LedgerFile(path, header(), limit=100)
    used = [0] * 3

    def work(mine):
        while True:
            try:
                block = file.reserve(STEP, 4, at_least=1)
            except BudgetExhausted:
                return
            used[mine] += block.count - block.count // 2
            file.settle(block, block.count - block.count // 2)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(used) == file.num_events == 100


def test_killed_anywhere_never_charges_less_than_was_released(path):
    source = random.Random(0)
    released = 0
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    for attempt in range(25):
        worker = forked(work, path, writing, attempt)
        if not attempt:  # However slow the machine is, something is released.
            select.select([reading], [], [], 60)
        time.sleep(source.uniform(0.0, 0.04))
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        while True:
            try:
                released += len(os.read(reading, 1 << 16))
            except BlockingIOError:
                break
        file = LedgerFile(path, header(), limit=600)
        assert released <= file.num_events <= 600
    os.close(reading)
    os.close(writing)
    assert released > 0
