"""The worker process: computes one job, so that the daemon never has to.

Run by the daemon as ``python -m greedw_daemon.worker.main SOCKET MEMORY PARENT``, with two
inherited descriptors and the daemon's process id. One thread takes requests and carries them out in
order, so an ``Apply`` waits for the ``Compute`` before it and no two ever touch the memory at once.
A second thread only watches the socket, and ends the process when the daemon closes it, whatever
the first one is computing. Should C code hold the interpreter at that moment, the kernel ends the
process when the daemon dies, and the daemon's SIGKILL when it does not.

Start-up counts, as a user waits for it: no asyncio here, and numba only once a job needs it.
"""

import ctypes
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import threadpoolctl
import xxhash

from greedw_daemon.worker.calibration import fixed_units
from greedw_daemon.worker.messages import (
    PACKET_BYTES_MAX,
    Applied,
    Apply,
    BucketReady,
    Compute,
    Computed,
    DataProbed,
    DigestState,
    Evaluate,
    Failed,
    Flip,
    JobOpened,
    OpenJob,
    ProbeData,
    Refused,
    Report,
    Request,
    Stage,
    StageReached,
    Started,
    StateDigested,
    clipped,
    decode_request,
    encode,
)
from greedw_daemon.worker.shared_memory import SharedMemory
from greedw_p2p.errors import DataSetError, GreedwError
from greedw_p2p.ids import NO_STATE, EntryId, StateDigest
from greedw_p2p.jobs import registry
from greedw_p2p.jobs.job import Job, Partial, StateBytes
from greedw_p2p.jobs.spec import JobSpec

FAULT_VARIABLE: Final = "GREEDW_TEST_WORKER_FAULT"
"""A seam for tests: an environment variable that makes a worker fail on purpose.

``raise:ROUND`` raises an exception in that round, ``exit:ROUND`` ends the process without a word,
``hang:SECONDS`` makes its first round hold the interpreter for that long, as C code may. All
strike when the round's first bucket has been reported, so that the attempt is half done.
"""

FAULT_EXIT_CODE: Final = 7

_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = "500"
"""Counts as half of the host's memory on top of what the process uses; an ordinary one has 0."""

_TRACEBACK_FRAMES: Final = 6
"""Innermost frames that are reported: those of the kernel or loader that failed."""


def main() -> None:
    """Serve the daemon that started this process until it closes the socket."""
    faulthandler.enable()  # a crash in native code then leaves its stack on stderr
    channel_number, memory, parent = (int(argument) for argument in sys.argv[1:])
    _die_with(parent)
    _die_before_the_daemon()
    # A service manager that stops the daemon sends SIGTERM to us as well, but the round in progress
    # is still to be finished: the daemon decides when its workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What libraries print joins what they complain about, for the daemon to keep.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    channel = socket.socket(fileno=channel_number)
    threading.Thread(target=_exit_at_hang_up, args=(channel,), daemon=True).start()
    try:
        _serve(channel, JobRunner(memory, channel))
    except ConnectionError:
        os._exit(0)  # the daemon has gone, and with it all that this process is for
    except GreedwError as error:
        _fail(channel, str(error), "")
    except Exception as error:  # noqa: BLE001 - whatever a job raises, the daemon must hear of it
        last = traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)
        _fail(channel, f"{type(error).__name__}: {error}", "".join(last))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the daemon's thread that started it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(0)  # it died before the kernel knew whom to tell


def _die_before_the_daemon() -> None:
    """Have the kernel pick this process, not the daemon, when the host is out of memory."""
    with suppress(OSError):  # a sandbox may keep /proc from us; it is a preference, no need
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _exit_at_hang_up(channel: socket.socket) -> None:
    """End the process when the daemon has closed its end of the socket."""
    poller = select.poll()
    poller.register(channel, select.POLLRDHUP)
    poller.poll()
    os._exit(0)  # nothing to clean up: the memory is anonymous, and no file is ever open


def _serve(channel: socket.socket, runner: "JobRunner") -> None:
    """Carry out requests in order until the socket ends."""
    channel.send(encode(Started()))
    while packet := channel.recv(PACKET_BYTES_MAX):
        runner.handle(decode_request(packet))


def _fail(channel: socket.socket, message: str, detail: str) -> None:
    """Say what went wrong, and end without finalisers, which may block."""
    try:
        channel.send(encode(Failed(clipped(message), clipped(detail))))
    finally:
        os._exit(1)


class JobRunner:
    """Carries out requests on one job: rules.

    - A job is opened once. Everything but probing needs it.
    - Of the two copies of the state, ``_current`` is the committed one and is only read. The other
      holds the state after the entry ``_applied``, if any.
    - ``Flip`` names that entry and swaps the copies; with any other entry it changes nothing and
      fails, so that no entry is applied twice or in part.
    """

    def __init__(self, memory_descriptor: int, channel: socket.socket) -> None:
        self._memory_descriptor = memory_descriptor
        self._channel = channel
        self._opened: tuple[Job, SharedMemory] | None = None
        self._current = 0
        self._applied: EntryId | None = None
        self._fault = Fault.from_environment()

    def handle(self, request: Request) -> None:
        """Carry out one request and send its reports."""
        match request:
            case ProbeData():
                self._probe(request)
            case OpenJob():
                self._open(request)
            case DigestState():
                self._report(StateDigested(_digest(self._states()[0])))
            case Compute():
                self._compute(request)
            case Evaluate():
                self._evaluate(request)
            case Apply(entry_id=entry_id):
                self._apply(entry_id)
            case Flip(entry_id=entry_id):
                self._flip(entry_id)

    def _probe(self, request: ProbeData) -> None:
        self._report(StageReached(Stage.LOADING))
        try:
            facts = registry.open_data(request.kind, request.data_dir)
        except DataSetError as error:
            self._report(Refused(clipped(str(error)), clipped(error.hint)))
            return
        self._report(DataProbed(facts.digest, facts.samples, facts.held_out))

    def _open(self, request: OpenJob) -> None:
        assert self._opened is None
        # One process per job is one core per job: a pool of threads in here would take the cores
        # of the daemon and of other nodes on this host. The environment has capped OpenMP and
        # numba already; this also caps a BLAS that does not look there.
        threadpoolctl.threadpool_limits(1)
        self._report(StageReached(Stage.LOADING))
        try:
            job = registry.open_job(request.spec)
        except DataSetError as error:
            self._report(Refused(clipped(str(error)), clipped(error.hint)))
            return
        memory = SharedMemory.allocate(self._memory_descriptor, job.layout)
        self._report(StageReached(Stage.COMPILING))
        job.warm()
        fixed = self._calibrate(job, memory, request.spec)
        self._opened = job, memory
        digest = NO_STATE
        if request.initialise:
            job.initial_state(memory.states[self._current])
            digest = _digest(memory.states[self._current])
        self._report(StageReached(Stage.READY))
        buckets, state_bytes = job.layout.gradient.buckets, job.layout.state_bytes
        self._report(JobOpened(buckets, state_bytes, digest, fixed))

    def _calibrate(self, job: Job, memory: SharedMemory, spec: JobSpec) -> float:
        """Return what a computation costs before its first sample, in samples.

        The state is all zeros yet: what a sample costs does not depend on it.
        """

        def time_of(count: int) -> int:
            began = time.perf_counter_ns()
            job.compute(
                memory.states[0], 0, 0, count, gradient=memory.own, ready=lambda _bucket: None
            )
            return time.perf_counter_ns() - began

        return fixed_units(time_of, min(spec.batch, spec.samples))

    def _compute(self, request: Compute) -> None:
        job, memory = self._job()

        def ready(bucket: int) -> None:
            self._report(BucketReady(request.index, request.ballot, bucket))
            if bucket == 0:
                self._fault.strike(request.round_number)

        began = time.perf_counter_ns()
        partial = job.compute(
            self._states()[0],
            request.round_number,
            request.start,
            request.count,
            gradient=memory.own,
            ready=ready,
        )
        self._report_partial(request, partial, began)

    def _evaluate(self, request: Evaluate) -> None:
        job, _memory = self._job()
        began = time.perf_counter_ns()
        partial = job.evaluate(self._states()[0], request.start, request.count)
        self._report_partial(request, partial, began)

    def _apply(self, entry_id: EntryId) -> None:
        job, memory = self._job()
        state, new_state = self._states()
        self._applied = None
        job.apply(state, memory.result, new_state)
        self._applied = entry_id
        self._report(Applied(entry_id, _digest(new_state)))

    def _flip(self, entry_id: EntryId) -> None:
        if entry_id != self._applied:
            raise RuntimeError(
                f"cannot flip to the state after entry {entry_id.hex()}, the other copy holds"
                f" {'nothing' if self._applied is None else self._applied.hex()}"
            )
        self._current = 1 - self._current
        self._applied = None

    def _job(self) -> tuple[Job, SharedMemory]:
        if self._opened is None:
            raise RuntimeError("no job is open")
        return self._opened

    def _states(self) -> tuple[StateBytes, StateBytes]:
        """Return the current copy and the other one."""
        states = self._job()[1].states
        return states[self._current], states[1 - self._current]

    def _report_partial(self, request: Compute | Evaluate, partial: Partial, began_ns: int) -> None:
        compute_us = (time.perf_counter_ns() - began_ns) // 1000
        self._report(
            Computed(
                request.index,
                request.ballot,
                partial.samples,
                partial.loss_sum,
                partial.correct,
                compute_us,
            )
        )

    def _report(self, report: Report) -> None:
        # Blocks while the daemon does not read: bounded memory, and a stopped daemon goes nowhere.
        self._channel.send(encode(report))


@dataclass(slots=True)
class Fault:
    """What FAULT_VARIABLE asks for; ``kind`` is empty where nothing is."""

    kind: str
    figure: float
    hung: bool = field(default=False)

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variable."""
        kind, _, figure = os.environ.get(FAULT_VARIABLE, "").partition(":")
        return cls(kind, float(figure) if kind else 0.0)

    def strike(self, round_number: int) -> None:
        """Fail, if it is this round's turn."""
        if self.kind == "raise" and round_number == self.figure:
            raise RuntimeError(f"{FAULT_VARIABLE} asked for an exception in round {round_number}")
        if self.kind == "exit" and round_number == self.figure:
            sys.stderr.write(f"{FAULT_VARIABLE} asked for the end in round {round_number}\n")
            sys.stderr.flush()
            os._exit(FAULT_EXIT_CODE)
        if self.kind == "hang" and not self.hung:
            self.hung = True
            # PyDLL keeps the interpreter's lock during the call, as badly behaved C code does.
            ctypes.PyDLL(None).usleep(int(self.figure * 1_000_000))


def _digest(state: StateBytes) -> StateDigest:
    """Return the digest that nodes compare after every round: not against malice, but fast."""
    return StateDigest(xxhash.xxh3_128(state.data).digest())


if __name__ == "__main__":
    main()
