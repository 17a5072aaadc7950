"""Whether a daemon is about to serve a directory: it loads code first, which takes a while.

A script starts ``greedwd`` in the background and goes on at once. The command after it must not
take the daemon for one that does not run.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

import platformdirs

from greedw_daemon.cluster.state_dir import LOCK

STATE_DIR_VARIABLE: Final = "GREEDW_STATE_DIR"
_OPTION: Final = "--state-dir"
_PROGRAMS: Final = frozenset({"greedwd", "greedw_daemon"})


def default_state_dir() -> Path:
    """Return where a node lives unless told otherwise."""
    chosen = os.environ.get(STATE_DIR_VARIABLE, "")
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("greedw", appauthor=False))


def is_starting(directory: Path) -> bool:
    """Tell whether a process holds the directory's lock, or a ``greedwd`` for it was started."""
    return _is_locked(directory) or any(
        _is_daemon_of(process, directory) for process in Path("/proc").glob("[0-9]*")
    )


def _is_locked(directory: Path) -> bool:
    """Try the lock, for an instant and shared; a daemon that meets that tries again."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_daemon_of(process: Path, directory: Path) -> bool:
    """Tell whether a process is a ``greedwd`` for the directory, even before it takes the lock."""
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        arguments = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        if not any(os.path.basename(a) in _PROGRAMS for a in arguments):
            return False
        chosen = _option(arguments) or _variable(process)
        wanted = Path(chosen) if chosen else default_state_dir()
        here = process.joinpath("cwd").readlink()
        return (here / wanted.expanduser()).resolve() == directory.resolve()
    return False


def _option(arguments: list[str]) -> str:
    for this, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if this == _OPTION:
            return after
        if this.startswith(f"{_OPTION}="):
            return this.partition("=")[2]
    return ""


def _variable(process: Path) -> str:
    prefix = f"{STATE_DIR_VARIABLE}="
    lines = process.joinpath("environ").read_bytes().decode(errors="replace").split("\0")
    return next((line.removeprefix(prefix) for line in lines if line.startswith(prefix)), "")
