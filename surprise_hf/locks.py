"""Locks of which every copy of their owner has one for itself; plain ones can be neither copied nor pickled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OwnLock", "SharedLock"]


class OwnLock:
    """Held by one thread, which may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OwnLock], tuple[()]]:
        return OwnLock, ()


class SharedLock:
    """Held by any number of threads together, or by one alone.

    Of an index: searches run side by side, a change waits for them and has the index to itself.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()  # shut while a thread is alone, or waits to be: else it might wait for ever
        self._left = threading.Condition()
        self._inside: set[int] = set()  # threads that share it

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that share it; a thread may do so again."""
        me = threading.get_ident()
        if me in self._inside:
            yield
            return
        try:  # around the entry, too: an interrupt right after it would leave this thread inside for ever
            with self._door:
                self._inside.add(me)
            yield
        finally:
            self._inside.discard(me)
            if self._door.locked():  # who shuts it later finds this thread gone
                with self._left:
                    self._left.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With no other thread inside.

        Raises:
            RuntimeError: this thread shares it already, and would wait for itself.
        """
        if threading.get_ident() in self._inside:
            raise RuntimeError("an index can't be changed from within its own search, as by a filter")
        with self._door, self._left:
            self._left.wait_for(lambda: not self._inside)
            yield

    def __reduce__(self) -> tuple[type[SharedLock], tuple[()]]:
        return SharedLock, ()
