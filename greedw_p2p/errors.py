"""The errors of greedw, by who must act.

::

    GreedwError
    ├── ConfigError              the operator must change a setting or a file
    │   ├── StateDirError        the state directory cannot be used as it is
    │   │   └── StateDirInUseError   another process uses it now
    │   ├── TokenError           an invitation is mistyped, cut short, or refused
    │   │   └── TokenVersionError    another version of greedw made it
    │   └── DataSetError         a data set is missing, truncated, or not the job's
    ├── PeerError                a peer is at fault, or its link: drop the link, keep running
    │   ├── FrameTooLargeError
    │   ├── MalformedFrameError
    │   ├── MalformedMessageError
    │   ├── HandshakeError
    │   ├── ViewMismatchError    a peer planned from another view
    │   └── ContributionError    a sum does not hold what the plan wants in it
    ├── JobError                 a job cannot be started or go on; the cluster can
    │   └── WorkerError          the process that computes has failed
    └── DaemonError              a command could not be carried out; carries the exit code

A broken invariant of ours is an ``assert``: no ``except GreedwError`` may hide a bug.
"""


class GreedwError(Exception):
    """Base of every error that greedw raises on purpose."""


class ConfigError(GreedwError):
    """A setting, a file or an argument is wrong; ``hint`` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StateDirError(ConfigError):
    """The state directory cannot be created, locked, read or written."""


class StateDirInUseError(StateDirError):
    """Another process holds the state directory's lock."""


class TokenError(ConfigError):
    """An invitation token cannot be used."""


class TokenVersionError(TokenError):
    """An invitation token was made by another version of greedw."""


class DataSetError(ConfigError):
    """A data set cannot be read, or is not the one that a job names."""


class PeerError(GreedwError):
    """A peer broke the protocol, or its connection failed."""


class FrameTooLargeError(PeerError):
    """A peer announced more bytes than a frame may have; nothing was allocated."""


class MalformedFrameError(PeerError):
    """The bytes on a connection are not a frame of ours."""


class MalformedMessageError(PeerError):
    """A frame's header is not a message of the announced type."""


class HandshakeError(PeerError):
    """The peer is of another cluster or version, or is not who it should be."""


class ViewMismatchError(PeerError):
    """A peer planned the same attempt from another view."""


class ContributionError(PeerError):
    """A sum lacks a participant, has one twice, or does not hold every work unit exactly once.

    ``child`` is the place of the child that delivered it, None where no single one can be named.
    """

    def __init__(self, message: str, child: int | None) -> None:
        super().__init__(message)
        self.child = child


class JobError(GreedwError):
    """A job cannot be started or cannot go on."""


class WorkerError(JobError):
    """The worker process died, or reported an error; ``detail`` has its last lines."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class DaemonError(GreedwError):
    """A command failed: what failed, what to try, and the exit code of the command."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
