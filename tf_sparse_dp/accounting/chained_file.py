"""A file of lines that only grows, under a lock, each line on disk at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_sparse_dp.accounting.event_json import canonical_json, parsed_json
from tf_sparse_dp.accounting.ledger_run import chained, random_id
from tf_sparse_dp.errors import PrivacyStateError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_Record = dict[str, Any]
# Of any file of this kind: a list of a digest and an object.
_BEGINNING = re.compile(rb'\["[0-9a-f]{64}",\{')


class ChainedFile:
    r"""JSON lines `[digest, record]`; every digest covers all lines before.

    A line is either what this class wrote, byte for byte, or the file is
    refused. The exception is the end: a process that was killed while it wrote
    leaves the beginning of a line without "\n". As its write never returned,
    nobody relied on the line. It is passed over, and removed by the next
    write. A last line that lacks only its "\n" counts.

    The lock is `flock` of the file itself, held from before what others wrote
    is read until what is written is on disk.

    Args:
      path: Of the file, which is made if it is not there.
      first: The record of the first line if the file has to be made.
      take_in: Called with every record, in order, once.

    Raises:
      TypeError: The path is none.
      PrivacyStateError: The file cannot be locked, or is none of this kind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        first: Mapping[str, Any],
        take_in: Callable[[_Record], None],
    ):
        if fcntl is None:
            raise PrivacyStateError(
                "This system has no fcntl.flock, so that two processes could "
                "spend one budget twice. Use Linux or macOS, or keep the "
                "budget in one process."
            )
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(
                f"path is {path!r}, expected the path of a file. Name one, "
                "which is made if it is not there."
            )
        self.path = os.path.abspath(os.fspath(path))
        if os.path.isdir(self.path):
            raise PrivacyStateError(
                f"path is {self.path}, which is a folder, expected a file. "
                "Name a file in it."
            )
        self._take_in = take_in
        self._identity: tuple[int, int] | None = None
        self.start_over()
        if not os.path.exists(self.path):
            self._create(first)

    def start_over(self) -> None:
        """Reads the file from its beginning when it is next read.

        After a fork too, where another thread may have been reading.
        """
        self._lock = threading.RLock()
        self._offset = 0  # To where it was read.
        self._lines = 0
        self._digest = ""
        self._digests: set[str] = set()
        self._ended = True  # Whether the line before the offset has its end.

    @property
    def digest(self) -> str:
        """Of all lines that were read."""
        return self._digest

    def had_digest(self, digest: str) -> bool:
        """Whether that was the digest at some time."""
        return digest in self._digests

    @contextlib.contextmanager
    def locked(self, *, to_write: bool) -> Iterator[int]:
        """Holds the lock, after all that others wrote was taken in."""
        with self._lock:
            access = os.O_RDWR | os.O_APPEND if to_write else os.O_RDONLY
            try:
                file = os.open(self.path, access | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise PrivacyStateError(
                    f"{self.path} was removed, and with it the record of what "
                    "is spent. Put it back; nothing may be released meanwhile."
                ) from error
            except OSError as error:
                raise PrivacyStateError(
                    f"{self.path} cannot be opened: {error}. Nothing was "
                    "reserved or given back; nothing may be released. Expected "
                    "a file that may be read and written."
                ) from error
            try:
                # Every opening has a lock of its own, in forks and threads too.
                fcntl.flock(file, fcntl.LOCK_EX if to_write else fcntl.LOCK_SH)
                self._read(file)
                yield file
            finally:
                # A fork may have inherited the file, and would keep the lock.
                fcntl.flock(file, fcntl.LOCK_UN)
                os.close(file)

    def append(self, file: int, record: _Record) -> None:
        """Writes a record to the file that `locked` gave, and to the disk.

        Raises:
          PrivacyStateError: It could not be written; then it is not there.
        """
        before = os.fstat(file).st_size
        text = canonical_json([chained(self._digest, record), record]) + "\n"
        if not self._ended:
            text = "\n" + text
        try:
            if self._ended and before > self._offset:
                os.ftruncate(file, self._offset)
                before = self._offset
            left = text.encode()
            while left:
                left = left[os.write(file, left) :]
            _to_disk(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise self._not_written(error) from error
        self._read(file)

    def _create(self, first: Mapping[str, Any]) -> None:
        """Makes the file with its first line, or not at all."""
        if not os.path.isdir(os.path.dirname(self.path)):
            raise PrivacyStateError(
                f"{self.path} could not be made: the folder "
                f"{os.path.dirname(self.path)} does not exist. Make it first."
            )
        text = canonical_json([chained("", first), first]) + "\n"
        unfinished = f"{self.path}.{random_id()}.new"
        try:
            with open(unfinished, "xb") as file:
                file.write(text.encode())
                file.flush()
                _to_disk(file.fileno())
            # Unlike a renaming, it leaves alone what another process made.
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, self.path)
            folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise PrivacyStateError(
                f"{self.path} could not be made: {error}. Expected a folder of "
                "a local file system, with room, that may be written to and "
                "has hard links."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)

    def _read(self, file: int) -> None:
        status = os.fstat(file)
        identity = status.st_dev, status.st_ino
        if self._identity is None:
            self._identity = identity
        if identity != self._identity or status.st_size < self._offset:
            raise PrivacyStateError(
                f"{self.path} was replaced or cut while it was in use: what "
                "was spent is not in it any more. Put the file back."
            )
        data = b""
        while len(data) < status.st_size - self._offset:
            more = os.pread(
                file,
                status.st_size - self._offset - len(data),
                self._offset + len(data),
            )
            if not more:
                break
            data += more
        if not self._ended and data:
            # The last line lacked its end, which another process has added.
            if data[:1] != b"\n":
                raise self._broken(self._lines, data)
            data = data[1:]
            self._offset += 1
            self._ended = True
        *lines, tail = data.split(b"\n")
        for line in lines:
            self._take_line(line, len(line) + 1)
        if tail and _is_whole(tail):
            self._take_line(tail, len(tail))
            self._ended = False
        if not self._lines:
            if tail and not _BEGINNING.match(tail):
                raise self._no_ledger(tail)
            raise PrivacyStateError(
                f"{self.path} is empty, or its first line is not whole, so "
                "that it does not say what it belongs to. If it never held "
                "anything, remove it; else put back an intact copy."
            )

    def _take_line(self, line: bytes, length: int) -> None:
        number = self._lines + 1
        try:
            parsed = parsed_json(line.decode("ascii"))
            record = parsed[1]
            digest = chained(self._digest, record)
            intact = canonical_json([digest, record]).encode() == line
        except (PrivacyStateError, LookupError, TypeError, ValueError):
            intact = False
        if number == 1 and not intact and not _BEGINNING.match(line):
            raise self._no_ledger(line)
        if not intact or not isinstance(record, dict):
            raise self._broken(number, line)
        try:
            self._take_in(record)
        except PrivacyStateError as error:
            raise PrivacyStateError(
                f"Line {number} of {self.path}: {error}"
            ) from error
        except (LookupError, TypeError, ValueError) as error:
            raise self._broken(number, line) from error
        self._digest = digest
        self._digests.add(digest)
        self._lines = number
        self._offset += length

    def _no_ledger(self, line: bytes) -> PrivacyStateError:
        error: PrivacyStateError = PrivacyStateError(
            f"{self.path} is not a ledger file: it begins with "
            f"{line[:60]!r}. Name a new path. If it once was one, it was "
            "changed, and what is spent cannot be told: put back an intact "
            "copy."
        )
        return error

    def _broken(self, number: int, line: bytes) -> PrivacyStateError:
        error: PrivacyStateError = PrivacyStateError(
            f"Line {number} of {self.path} is not as it was written, or what "
            f"stands before it is not: {line[:60]!r}.... The file was changed; "
            "what is spent cannot be told. Put back an intact copy."
        )
        return error

    def _not_written(self, error: OSError) -> PrivacyStateError:
        explained: PrivacyStateError = PrivacyStateError(
            f"{self.path} could not be written: {error}. Nothing was reserved "
            "or given back; nothing may be released. Expected a local file "
            "system with room, and leave to write."
        )
        return explained


def _is_whole(tail: bytes) -> bool:
    """Whether a line without an end is more than the beginning of one.

    No beginning of a list is a list. So what begins with one was written to
    its end, and must be intact.
    """
    try:
        json.JSONDecoder().raw_decode(tail.decode("ascii", errors="replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _to_disk(file: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(file)
    else:  # On macOS fsync leaves it to the drive when to write.
        fcntl.fcntl(file, full)
