"""Messages to the service manager, as sd_notify(3) has them; silent without NOTIFY_SOCKET."""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_STATUS_CHARS_MAX: Final = 200


class Notifier:
    """Tells the service manager how the daemon is. Nothing here can fail or block the daemon."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        self.watchdog_s = _watchdog_s(environment)
        """Interval in which the manager wants a sign of life, None if it does not."""
        target = environment.get("NOTIFY_SOCKET", "")
        if target.startswith(("/", "@")):
            with contextlib.suppress(OSError):
                self._socket = _connect(target)

    @property
    def is_listened_to(self) -> bool:
        """Tell whether a service manager runs this process."""
        return self._socket is not None

    def ready(self) -> None:
        """Say that the daemon serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that the daemon is on its way out."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Give a line for ``systemctl status``; sent only when it changes."""
        line = " ".join(text.split())[:_STATUS_CHARS_MAX]
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            # A manager that does not read must not stop us: the socket does not block.
            with contextlib.suppress(OSError):
                self._socket.send(message.encode())


def _connect(target: str) -> socket.socket:
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        notify.settimeout(0)
        # "@" stands for the zero byte of an abstract address.
        notify.connect("\0" + target[1:] if target.startswith("@") else target)
    except OSError:
        notify.close()
        raise
    return notify


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog's interval, if it is set and meant for this process."""
    interval_us = environment.get("WATCHDOG_USEC", "")
    process = environment.get("WATCHDOG_PID", "")
    if not interval_us.isdigit() or int(interval_us) == 0:
        return None
    if process and process != str(os.getpid()):
        return None
    return int(interval_us) / 1e6
