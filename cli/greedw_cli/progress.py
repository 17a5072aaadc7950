"""Following a job: a bar on a terminal, else a line every ten seconds."""

import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from greedw_cli import figures
from greedw_cli.daemon import convert
from greedw_cli.job_choice import ENDED, JobList
from greedw_cli.pace import Pace
from greedw_daemon.control.client import ControlClient
from greedw_p2p.errors import DaemonError
from greedw_p2p.node.status import JobStatus, NodeState

LINE_INTERVAL_S: Final = 10.0
POLL_S: Final = 0.25

_BAR_COLUMNS_MAX: Final = 40
_BAR_COLUMNS_MIN: Final = 6
"""Below this a bar says nothing, and is left out."""

_GAP_COLUMNS: Final = 2
_MARGIN_COLUMNS: Final = 3
"""Left free at the right, where a terminal shows ``^C``: a line that wraps is never redrawn."""

_MISSING_S_MAX: Final = 10.0
"""How long a job may be missing from the daemon's list right after it was accepted."""


class Reporter:
    """Shows the newest state of a job; ``detail`` adds what else belongs below the bar."""

    def __init__(
        self, console: Console, detail: Callable[[], list[RenderableType]] | None = None
    ) -> None:
        self._console = console
        self._detail = detail
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=detail is not None)
        self._is_live = False
        self._line_due_s = 0.0
        self._told = ("", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None and self._is_live:
            self._live.stop()

    def show(self, job: JobStatus, pace: Pace, now_s: float) -> None:
        """Show the job as it is now."""
        left_s = pace.seconds_left(job.rounds - job.round)
        if self._live is not None:
            below = self._detail() if self._detail is not None else []
            bar = round_bar(job, left_s, self._console.width - _MARGIN_COLUMNS)
            self._live.update(Group(bar, *_reason(job), *below), refresh=self._is_live)
            if not self._is_live:  # only now, because a bar of nothing leaves an empty line
                self._is_live = True
                self._live.start(refresh=True)
            return
        changed = self._told != (job.state, job.reason)
        if changed or now_s >= self._line_due_s:
            self._console.print(Text(round_text(job, left_s)), soft_wrap=True)
            self._line_due_s = now_s + LINE_INTERVAL_S
            self._told = (job.state, job.reason)


def round_text(job: JobStatus, left_s: float | None) -> str:
    """Return one plain line about a job."""
    if job.state == "preparing":
        return "loading data and compiling kernels on every member"
    parts = [f"round {job.round:,} of {job.rounds:,}"]
    if job.loss is not None:
        parts.append(f"loss {figures.loss(job.loss)}")
    if job.accuracy is not None:
        parts.append(f"accuracy {figures.percent(job.accuracy)}")
    if job.state == "running":
        if left_s is not None:
            parts.append(f"{figures.duration(left_s)} left")
    else:
        parts.append(f"{job.state}: {job.reason}" if job.reason else job.state)
    return ", ".join(parts)


def round_bar(job: JobStatus, left_s: float | None, width: int) -> RenderableType:
    """Return the one line with the bar, which takes what the figures leave of ``width``."""
    if job.state == "preparing":
        return Text("  loading data and compiling kernels on every member ...", no_wrap=True)
    begin = f"  round {job.round:,}/{job.rounds:,}"
    parts = [f"loss {figures.loss(job.loss)}", f"accuracy {figures.percent(job.accuracy)}"]
    if left_s is not None and job.state not in ENDED:
        parts.insert(0, f"{figures.duration(left_s)} left")
    room = width - len(begin) - sum(len(text) + _GAP_COLUMNS for text in parts) - _GAP_COLUMNS
    line = Table.grid(padding=(0, _GAP_COLUMNS))
    cells: list[RenderableType] = [begin]
    if room >= _BAR_COLUMNS_MIN:
        bar_width = min(room, _BAR_COLUMNS_MAX)
        cells.append(ProgressBar(total=max(1, job.rounds), completed=job.round, width=bar_width))
    for _ in (*cells, *parts):
        line.add_column(no_wrap=True)
    line.add_row(*cells, *parts)
    return line


def follow(client: ControlClient, job_id: str, reporter: Reporter, pace: Pace) -> JobStatus:
    """Show a job until it ends, and return how it ended.

    Raises:
        DaemonError: if the daemon ends meanwhile, does not know the job, or has left its cluster.
    """
    missing_until_s = time.monotonic() + _MISSING_S_MAX
    while True:
        job = _look(client, job_id)
        now_s = time.monotonic()
        if job is None:
            if now_s > missing_until_s:
                raise DaemonError(
                    f"the daemon does not know the job {job_id} (any more)",
                    hint="Look at greedw jobs and at the daemon's log.",
                )
        else:
            missing_until_s = now_s + _MISSING_S_MAX
            note_pace(pace, job, now_s)
            reporter.show(job, pace, now_s)
            if job.state in ENDED:
                return job
        time.sleep(POLL_S)


def _look(client: ControlClient, job_id: str) -> JobStatus | None:
    """Return the job as the daemon knows it now, None if it does not (yet).

    Raises:
        DaemonError: if this machine belongs to no cluster any more.
    """
    answer = client.call("status")
    job = next((job for job in convert(answer, JobList).jobs if job.id == job_id), None)
    has_left = not answer.get("prepared", True) or answer.get("state") == NodeState.LEFT
    if has_left and (job is None or job.state not in ENDED):
        raise DaemonError("this machine has left the cluster; the job goes on without it")
    return job


def note_pace(pace: Pace, job: JobStatus, now_s: float) -> None:
    """Let ``pace`` see a job that runs; a pause is not the pace of anything."""
    if job.state == "running" or (job.state in ENDED and job.round > 0):
        pace.look(job.round, now_s)
    else:
        pace.pause()


def _reason(job: JobStatus) -> list[RenderableType]:
    if not job.reason:
        return []
    return [Text(f"  {job.state}: {job.reason}", style="yellow")]
