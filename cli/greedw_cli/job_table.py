"""The table of ``greedw jobs``: ids are never cut, because they are there to be copied."""

from collections.abc import Sequence
from typing import Final

from greedw_cli import figures
from greedw_p2p.node.status import JobStatus

_HEADER: Final = ("job", "state", "round", "loss", "accuracy", "replica")
_TO_THE_RIGHT: Final = frozenset({"round", "loss", "accuracy"})
_DIGEST_CHARS: Final = 10


def job_lines(jobs: Sequence[JobStatus]) -> list[str]:
    """Return the lines of the table; a reason is on a line of its own below its job."""
    rows = [_row(job) for job in jobs]
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    lines = [_format(_HEADER, widths)]
    for job, row in zip(jobs, rows, strict=True):
        lines.append(_format(row, widths))
        lines += [f"  {line}" for line in job.reason.splitlines()]
    return lines


def replica(job: JobStatus) -> str:
    """Return the digest that all replicas share, "differ!", or a dash where none is known."""
    digests = {digest for digest in job.digests.values() if digest}
    if len(digests) > 1:
        return "differ!"
    return next(iter(digests))[:_DIGEST_CHARS] if digests else "-"


def _row(job: JobStatus) -> tuple[str, ...]:
    return (
        job.id,
        job.state,
        f"{job.round:,}/{job.rounds:,}",
        figures.loss(job.loss),
        figures.percent(job.accuracy),
        replica(job),
    )


def _format(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if name in _TO_THE_RIGHT else cell.ljust(width)
        for name, cell, width in zip(_HEADER, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()
