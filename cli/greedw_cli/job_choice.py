"""Which job a command means: by a prefix of its id, or the one that runs."""

from collections.abc import Sequence
from typing import Final

import msgspec

from greedw_cli import exits
from greedw_cli.daemon import convert
from greedw_daemon.control.client import ControlClient
from greedw_p2p.errors import DaemonError
from greedw_p2p.node.status import JobStatus

ENDED: Final = frozenset({"finished", "stopped", "failed"})
_LIST_THEM: Final = "greedw jobs lists them"


class JobList(msgspec.Struct, frozen=True):
    """The daemon's answer to the call ``jobs``; newest last."""

    jobs: tuple[JobStatus, ...]


def known_jobs(client: ControlClient) -> tuple[JobStatus, ...]:
    """Return the jobs that the daemon knows, newest last."""
    return convert(client.call("jobs"), JobList).jobs


def choose_job(jobs: Sequence[JobStatus], given: str | None) -> JobStatus:
    """Return the job whose id is or begins with ``given``; without it, the one that has not ended.

    Raises:
        DaemonError: if there is none, or more than one (exit 2).
    """
    if given is None:
        active = [job for job in jobs if job.state not in ENDED]
        if not active:
            raise DaemonError("no job is running", hint=_LIST_THEM)
        return _only(active, "more than one job is running")
    exact = [job for job in jobs if job.id == given]
    found = exact or [job for job in jobs if given and job.id.startswith(given)]
    if not found:
        raise DaemonError(f"there is no job {given!r} here", hint=_LIST_THEM)
    return _only(found, f"{given!r} is the beginning of more than one id")


def _only(found: Sequence[JobStatus], ambiguity: str) -> JobStatus:
    if len(found) > 1:
        ids = ", ".join(job.id for job in found)
        raise DaemonError(ambiguity, hint=f"give one of: {ids}", exit_code=exits.WRONG_USAGE)
    return found[0]
