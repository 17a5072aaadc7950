"""``train``, ``jobs``, ``stop``: what the cluster works on."""

import threading
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from greedw_cli import exits, figures
from greedw_cli.console import explain, make_console, print_json, print_line
from greedw_cli.daemon import AsJson, StateDir, connect, convert
from greedw_cli.job_choice import JobList, choose_job, known_jobs
from greedw_cli.job_table import job_lines
from greedw_cli.pace import Pace
from greedw_cli.progress import Reporter, follow
from greedw_daemon.control.client import ControlClient
from greedw_p2p.errors import DaemonError
from greedw_p2p.jobs.registry import DEFAULTS, MNIST_2NN, job_kinds
from greedw_p2p.node.status import JobStatus

PREPARE_S: Final = 300.0
"""Limit of a submission: every member loads the data and may compile kernels first."""

STOP_S: Final = 60.0
"""Limit of a stop, which waits for the round in progress."""

SCHEMA: Final = 1

LEARNING_RATE_MAX: Final = 1e5
SLOW_S: Final = 0.5
"""An answer that takes longer is worth an explanation; a refusal comes sooner."""

_USUAL: Final = DEFAULTS[MNIST_2NN]

Epochs = Annotated[int, typer.Option(min=1, max=1_000_000, help="Passes over the data.")]
Batch = Annotated[
    int, typer.Option(min=1, max=2**31 - 1, help="Samples of a round, over all nodes together.")
]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate, above 0, at most 1e5.")]
Momentum = Annotated[float, typer.Option(help="Momentum, from 0, below 1.")]
Seed = Annotated[
    int, typer.Option(min=0, max=2**62 - 1, help="Decides initial parameters and order of samples.")
]


def train(
    context: typer.Context,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"What to train: {', '.join(job_kinds())}.")
    ],
    *,
    epochs: Epochs = _USUAL.epochs,
    batch: Batch = _USUAL.batch,
    lr: LearningRate = _USUAL.learning_rate,
    momentum: Momentum = _USUAL.momentum,
    seed: Seed = _USUAL.seed,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Folder with the data set on every node. Default: the digits that greedw brings.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's id and return at once.")
    ] = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
) -> None:
    """Train a model on all members together, and follow it to the end."""
    _check(kind, lr, momentum)
    data_dir = _data_dir(data)
    client = connect(context, state_dir, PREPARE_S)
    order = {
        "kind": kind,
        "data_dir": data_dir,
        "epochs": epochs,
        "batch": batch,
        "learning_rate": lr,
        "momentum": momentum,
        "seed": seed,
    }
    submission = _Submission(client, order)
    try:
        answer = submission.send()
        if detach:
            _print_detached(answer, as_json=as_json)
        else:
            _follow_to_the_end(client, submission.job, as_json=as_json, embedded=data is None)
    except KeyboardInterrupt:
        submission.explain_interruption()
        raise typer.Exit(exits.INTERRUPTED) from None


def jobs(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            show_default=False,
            help="Only this job: its id, or the beginning of it. With --follow, the running one.",
        ),
    ] = None,
    *,
    follow_it: Annotated[
        bool, typer.Option("--follow", help="Follow the job to its end, as train does.")
    ] = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
) -> None:
    """List the jobs, newest last; or follow one."""
    client = connect(context, state_dir)
    if follow_it:
        _follow_again(client, choose_job(known_jobs(client), job), as_json=as_json)
        return
    answer = client.call("jobs")
    listed = convert(answer, JobList).jobs
    if job is not None:
        listed = (choose_job(listed, job),)
        answer |= {"jobs": [entry for entry in answer["jobs"] if entry["id"] == listed[0].id]}
    if as_json:
        print_json(answer)
    elif listed:
        for line in job_lines(listed):
            print_line(line)
    else:
        print_line("No job has been started here. Next: greedw train mnist-2nn")


def stop(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            show_default=False,
            help="The job's id, or the beginning of it. Default: the one that runs.",
        ),
    ] = None,
    *,
    state_dir: StateDir = None,
) -> None:
    """End a job after the round in progress, on every member."""
    client = connect(context, state_dir, STOP_S)
    job_id = choose_job(known_jobs(client), job).id
    client.call("stop", job=job_id)
    print_line(f"The job {job_id} is stopped.")


def _follow_again(client: ControlClient, job: JobStatus, *, as_json: bool) -> None:
    try:
        _follow_to_the_end(client, job.id, as_json=as_json, embedded=False)
    except KeyboardInterrupt:
        _explain_going_on(job.id)
        raise typer.Exit(exits.INTERRUPTED) from None


class _Submission:
    """A job on its way to the daemon; ``job`` is its id, empty until the daemon has told it."""

    def __init__(self, client: ControlClient, order: dict[str, Any]) -> None:
        self._client = client
        self._order = order
        self.job = ""

    def send(self) -> dict[str, Any]:
        """Submit the job, and return the daemon's answer."""
        waiting = threading.Timer(SLOW_S, explain, [self._what_takes_long()])
        waiting.daemon = True
        waiting.start()
        try:
            answer = self._client.call("train", **self._order)
        finally:
            waiting.cancel()
        self.job = str(answer["job"])
        return answer

    def _what_takes_long(self) -> str:
        kind = self._order["kind"]
        return f"Starting {kind}: every member loads the data and compiles its kernels ..."

    def explain_interruption(self) -> None:
        """Say what becomes of the job that nobody follows any more."""
        if self.job:
            _explain_going_on(self.job)
        else:
            explain("The daemon may have started the job nevertheless: see greedw jobs.")


def _explain_going_on(job_id: str) -> None:
    explain(f"The job {job_id} goes on without this command.")
    explain(f"To follow it again: greedw jobs --follow {job_id}")
    explain(f"To end it: greedw stop {job_id}")


def _check(kind: str, learning_rate: float, momentum: float) -> None:
    if kind not in job_kinds():
        raise typer.BadParameter(f"there are: {', '.join(job_kinds())}", param_hint="KIND")
    if not 0 < learning_rate <= LEARNING_RATE_MAX:  # nor "nan", which compares as false
        raise typer.BadParameter("must be above 0 and at most 1e5", param_hint="--lr")
    if not 0 <= momentum < 1:
        raise typer.BadParameter("must be from 0, below 1", param_hint="--momentum")


def _data_dir(given: str | None) -> str:
    """Return the folder as the daemon gets it: absolute, or empty for the embedded digits."""
    if given is None:
        return ""
    if not given.strip():
        raise typer.BadParameter("names no folder", param_hint="--data")
    path = Path(given).absolute()
    if path.is_file():
        raise typer.BadParameter(
            f"{path} is a file; give the folder that it is in", param_hint="--data"
        )
    return str(path)


def _print_detached(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    explain("The job runs; greedw jobs shows how far it is.")
    print_line(str(answer["job"]))


def _follow_to_the_end(
    client: ControlClient, job_id: str, *, as_json: bool, embedded: bool
) -> None:
    console = make_console(stderr=as_json)
    begin_s = time.monotonic()
    with Reporter(console) as reporter:
        job = follow(client, job_id, reporter, Pace())
    if as_json:
        print_json({"schema": SCHEMA, "job": msgspec.to_builtins(job)})
    elif job.state == "finished":
        _print_result(console, job, time.monotonic() - begin_s, embedded=embedded)
    if job.state == "failed":
        raise DaemonError(f"the job {job_id} failed: {job.reason or 'no reason was given'}")
    if job.state == "stopped":
        reason = f": {job.reason}" if job.reason else ""
        raise DaemonError(f"the job {job_id} was stopped after round {job.round:,}{reason}")


def _print_result(console: Console, job: JobStatus, seconds: float, *, embedded: bool) -> None:
    console.print(result_sentence(job, seconds, embedded=embedded))


def result_sentence(job: JobStatus, seconds: float, *, embedded: bool) -> str:
    """Return how a job ended. The embedded digits' held-out part is no official test set."""
    what = f"{job.held_out:,} held-out samples"
    if embedded:
        what = f"{job.held_out:,} held-out digits (not the official test set)"
    return (
        f"Done: accuracy {figures.percent(job.accuracy)} on {what}, "
        f"{figures.plural(job.round, 'round')}, {seconds:.1f} s."
    )
