"""``greedwd``: the entry point."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

import uvloop

from greedw_daemon import log_setup
from greedw_daemon.cluster.state_dir import StateDir
from greedw_daemon.control.client import ControlClient
from greedw_daemon.daemon import Daemon
from greedw_daemon.notify import Notifier
from greedw_daemon.settings import Settings, parse_settings
from greedw_p2p.errors import ConfigError, DaemonError, StateDirInUseError

CONFIG_EXIT: Final = 78
"""EX_CONFIG: a service manager must not start it again before something was changed."""

LOCK_S: Final = 10.0
"""How long a command that prepares the directory just now may hold it."""

_LOCK_LOOK_S: Final = 0.02

DIE_WITH_PARENT: Final = "GREEDW_DIE_WITH_PARENT"
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the daemon and exit."""
    try:
        settings = parse_settings(arguments)
        _obey_parent()
        sys.exit(uvloop.run(_run(settings)))
    except ConfigError as error:
        _explain(error, error.hint)
        sys.exit(CONFIG_EXIT)
    except DaemonError as error:
        _explain(error, error.hint)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(settings: Settings) -> int:
    with _open_directory(settings) as directory:
        log_setup.configure(
            node=directory.identity.name,
            log_format=settings.log_format,
            level=settings.log_level,
        )
        notifier = Notifier()
        try:
            return await Daemon(settings, directory, notifier).run()
        finally:
            notifier.close()


def _open_directory(settings: Settings) -> StateDir:
    """Open the state directory; wait while no daemon holds it but a command."""
    deadline_s = time.monotonic() + LOCK_S
    others = ControlClient(settings.state_dir, 1.0, starting_s=0)
    while True:
        try:
            return StateDir.open(settings.state_dir, name=settings.name)
        except StateDirInUseError:
            if time.monotonic() >= deadline_s or others.is_running():
                raise
            time.sleep(_LOCK_LOOK_S)


def _obey_parent() -> None:
    """End politely when the starter dies, if it asks for that: a demo leaves nothing behind."""
    if os.environ.pop(DIE_WITH_PARENT, "") != "1":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died just before
        sys.exit(1)


def _explain(error: Exception, hint: str) -> None:
    sys.stderr.write(f"greedwd: {error}\n")
    if hint:
        sys.stderr.write(f"{hint}\n")


if __name__ == "__main__":
    main()
