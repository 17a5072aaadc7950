"""``demo``: a cluster of real daemons on this machine that trains while one looks on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from greedw_cli import exits, figures, jobs
from greedw_cli.console import explain, make_console, print_json
from greedw_cli.daemon import AsJson, convert
from greedw_cli.demo_screen import DemoScreen, Outcome, as_json_object, print_summary
from greedw_cli.interruptions import Interrupted, Interruptions
from greedw_cli.job_choice import ENDED
from greedw_cli.pace import Pace
from greedw_cli.progress import POLL_S, note_pace
from greedw_daemon.harness import CALL_S, DaemonEndedError, DaemonProcess, LocalCluster
from greedw_p2p.errors import DaemonError
from greedw_p2p.jobs.registry import DEFAULTS, MNIST_2NN
from greedw_p2p.node.status import JobStatus, NodeStatus

_USUAL: Final = DEFAULTS[MNIST_2NN]
NODES_MAX: Final = 32
_NAMES_SHOWN_MAX: Final = 4

LINKS_S: Final = 3.0
"""How long the demo waits for all links to be measured; training starts without them as well."""

STANDSTILL_S: Final = 60.0
"""Without a new round for so long, the demo gives up: nothing hangs."""

_END: Final = "the training to end"

AGREE_S: Final = 10.0
"""Limit from the end of the job at one daemon to its end at every other."""


def demo(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many daemons.")] = 4,
    epochs: jobs.Epochs = _USUAL.epochs,
    batch: jobs.Batch = _USUAL.batch,
    seed: jobs.Seed = _USUAL.seed,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="Keep state directories and logs in DIR."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on embedded digits with several daemons on this machine; leaves nothing behind."""
    directory = None if keep is None else _empty_directory(keep)
    names = [f"lab-{number}" for number in range(nodes)]
    work = _Work(epochs=epochs, batch=batch, seed=seed)
    screen = DemoScreen(make_console(stderr=as_json), names)
    outcome = _run(names, directory, work, screen)
    if as_json:
        print_json(as_json_object(outcome))
    else:
        print_summary(screen.console, outcome, kept=directory)
    _check(outcome)


@dataclass(frozen=True, slots=True)
class _Work:
    epochs: int
    batch: int
    seed: int


def _run(names: Sequence[str], directory: Path | None, work: _Work, screen: DemoScreen) -> Outcome:
    """Start, train, and clean up whatever happens.

    Raises:
        typer.Exit: after a signal, when everything is cleaned up.
    """
    interruptions = Interruptions(hurry=lambda: setattr(cluster, "hurry", True))
    cluster = LocalCluster(names, directory=directory, shield=interruptions.held)
    outcome: Outcome | None = None
    with interruptions:
        try:
            try:
                outcome = _train(cluster, work, screen)
            except DaemonError as error:
                raise _explained(error, cluster, kept=directory) from error
            finally:
                interruptions.stop_raising()
                cluster.close()
        except Interrupted:
            # Once more, for a signal that came before the line that stops the raising.
            cluster.close()
        left_behind = cluster.left_behind()
        if interruptions.exit_code is not None:
            explain("Interrupted. " + _tidiness(left_behind))
            raise typer.Exit(interruptions.exit_code)
    if left_behind:
        raise DaemonError("the demo could not clean up: " + _tidiness(left_behind))
    assert outcome is not None
    return outcome


def _explained(error: DaemonError, cluster: LocalCluster, *, kept: Path | None) -> DaemonError:
    """Return the error with advice that holds in a demo, whose daemons end with it.

    What a daemon itself advises (look at the log, ask ``greedw status``) no one can follow any
    more.
    """
    if error.exit_code == exits.WRONG_USAGE:
        return error
    concerned = error.daemon if isinstance(error, DaemonEndedError) else cluster.first
    logs = "The logs are deleted now; to keep them: greedw demo --keep DIR"
    if kept is not None:
        logs = f"All logs are kept in {kept}"
    exit_code = exits.FAILED if error.exit_code == exits.NOT_RUNNING else error.exit_code
    return DaemonError(str(error), hint=f"{concerned.log_tail()}\n---\n{logs}", exit_code=exit_code)


def _tidiness(left_behind: Sequence[str]) -> str:
    return f"Left behind: {', '.join(left_behind)}" if left_behind else "Nothing was left behind."


def _train(cluster: LocalCluster, work: _Work, screen: DemoScreen) -> Outcome:
    names = list(cluster.daemons)
    with screen.stage(f"Starting {_daemons(len(names))} on this machine ... {_shown(names)}"):
        cluster.start()
    with screen.stage("Forming a cluster ...") as result:
        cluster.form("demo")
        result.append(_wait_for_links(cluster))
    with screen.stage("Loading data, compiling kernels (slow the first time only) ..."):
        job_id = _submit(cluster, work)
        job = cluster.wait_for(
            partial(_begun, cluster.first, job_id), jobs.PREPARE_S, "the training to begin"
        )
    screen.say(
        f"Training {job.kind} on {job.samples:,} digits, batch {job.batch:,}, "
        f"{figures.plural(job.epochs, 'epoch')}"
    )
    return _watch(cluster, job_id, screen)


def _daemons(count: int) -> str:
    return "1 daemon" if count == 1 else f"{count} daemons"


def _shown(names: Sequence[str]) -> str:
    if len(names) <= _NAMES_SHOWN_MAX:
        return " ".join(names)
    return f"{names[0]} ... {names[-1]}"


def _submit(cluster: LocalCluster, work: _Work) -> str:
    answer = cluster.call(
        cluster.first,
        "train",
        "the training to begin",
        timeout_s=jobs.PREPARE_S,
        kind=MNIST_2NN,
        data_dir="",
        epochs=work.epochs,
        batch=work.batch,
        learning_rate=_USUAL.learning_rate,
        momentum=_USUAL.momentum,
        seed=work.seed,
    )
    return str(answer["job"])


def _wait_for_links(cluster: LocalCluster) -> str:
    """Give the measuring of links a moment; say how far it came."""
    deadline_s = time.monotonic() + LINKS_S
    while True:
        tree = _look(cluster, "the links to be measured").topology
        all_known = tree.links_known >= tree.links_wanted
        if all_known or time.monotonic() > deadline_s:
            break
        cluster.pause(POLL_S)
    count = len(cluster.daemons)
    members = "1 member" if count == 1 else f"{count} members"
    if count == 1:
        return members
    if all_known:
        return f"{members}, all links measured"
    return f"{members}, {tree.links_known} of {tree.links_wanted} links measured"


def _look(cluster: LocalCluster, what: str) -> NodeStatus:
    """Return the first daemon's status while waiting for ``what``."""
    return cluster.wait_for(partial(node_of, cluster.first), CALL_S, what)


def node_of(daemon: DaemonProcess) -> NodeStatus:
    """Return a daemon's own status."""
    return convert(daemon.status(), NodeStatus)


def _job_of(node: NodeStatus, job_id: str) -> JobStatus | None:
    return next((job for job in node.jobs if job.id == job_id), None)


def _begun(daemon: DaemonProcess, job_id: str) -> JobStatus | None:
    job = _job_of(node_of(daemon), job_id)
    return None if job is None or job.state == "preparing" else job


def _watch(cluster: LocalCluster, job_id: str, screen: DemoScreen) -> Outcome:
    """Show the job until it ends, then ask every daemon for its replica."""
    pace = Pace()
    begin_s = moved_s = time.monotonic()
    last_round = -1
    working: NodeStatus | None = None
    with screen.live():
        while True:
            node, now_s = _look(cluster, _END), time.monotonic()
            job = _job_of(node, job_id)
            if job is None:
                raise DaemonError(f"{cluster.first.name} does not know the job {job_id} any more")
            note_pace(pace, job, now_s)
            screen.show(node, job, pace, now_s)
            if job.state in ENDED:
                break
            working = node
            if job.round > last_round:
                last_round, moved_s = job.round, now_s
            _check_moving(cluster, job, now_s - moved_s)
            cluster.pause(POLL_S)
    if job.state != "finished":
        raise DaemonError(f"the training {job.state}: {job.reason}", hint=cluster.first.log_tail())
    return Outcome(
        job=job,
        seconds=now_s - begin_s,
        round_ms_median=pace.round_ms_median(),
        working=working if working is not None else node,
        final=node,
        digests=_replicas(cluster, job_id),
    )


def _check_moving(cluster: LocalCluster, job: JobStatus, still_s: float) -> None:
    cluster.check_running(_END)
    if still_s > STANDSTILL_S:
        raise DaemonError(
            f"no round ended for {still_s:.0f} s, the job is {job.state}: {job.reason}",
            hint=cluster.first.log_tail(),
            exit_code=exits.UNREACHABLE,
        )


def _replicas(cluster: LocalCluster, job_id: str) -> dict[str, str]:
    """Return the digest of each daemon's replica, as that daemon itself tells it."""
    digests: dict[str, str] = {}
    for name, daemon in cluster.daemons.items():
        digests[name] = cluster.wait_for(
            partial(_final_digest, daemon, job_id), AGREE_S, f"{name} to have the last round"
        )
    return digests


def _final_digest(daemon: DaemonProcess, job_id: str) -> str | None:
    job = _job_of(node_of(daemon), job_id)
    return job.digests.get(daemon.name) if job is not None and job.state == "finished" else None


def _check(outcome: Outcome) -> None:
    if not outcome.replicas_identical:
        raise DaemonError("the replicas differ; this is a bug in greedw, please report it")
    if outcome.job.accuracy is None:
        raise DaemonError("the job ended without an accuracy; this is a bug, please report it")


def _empty_directory(path: Path) -> Path:
    directory = path.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        occupied = any(directory.iterdir())
    except OSError as error:
        raise DaemonError(f"{directory} cannot be used for --keep: {error.strerror}") from error
    if occupied:
        raise DaemonError(f"{directory} is not empty", hint="Give --keep a new directory.")
    return directory
