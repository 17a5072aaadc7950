"""``greedwd``: the entry point."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from greedw_daemon import log_setup
from greedw_daemon.cluster.state_dir import StateDir
from greedw_daemon.daemon import Daemon
from greedw_daemon.notify import Notifier
from greedw_daemon.settings import Settings, parse_settings
from greedw_p2p.errors import ConfigError, DaemonError

CONFIG_EXIT: Final = 78
"""EX_CONFIG: a service manager must not start it again before something was changed."""

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
    with StateDir.open(settings.state_dir, name=settings.name) as directory:
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
