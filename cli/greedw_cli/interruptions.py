"""Signals that end a command which must clean up: the first one raises, at a moment that can."""

import contextlib
import signal
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupted(BaseException):
    """A signal asks the command to end; like KeyboardInterrupt, it is no ``Exception``."""


class Interruptions:
    """Handles SIGINT, SIGTERM and SIGHUP while it is entered.

    The first signal raises ``Interrupted`` in the main thread, but never inside ``held`` and never
    after ``stop_raising``: what has been created is always known to whoever cleans up. The end of
    each held block raises again, because Python drops what is raised inside a finaliser. Any
    further signal only calls ``hurry``, so that an impatient second Ctrl-C shortens the clean-up
    and does not abort it.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._holds = 0
        self._may_raise = True
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def exit_code(self) -> int | None:
        """The exit code that the received signal asks for (130 for Ctrl-C), None without one."""
        return None if self._received is None else 128 + self._received

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Put off raising to the end of the block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._received is not None and self._may_raise and self._holds == 0:
            raise Interrupted

    def stop_raising(self) -> None:
        """Let signals shorten the clean-up from now on, and never break it."""
        self._may_raise = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            self._hurry()
            return
        self._received = signal.Signals(number)
        if self._may_raise and self._holds == 0:
            raise Interrupted
