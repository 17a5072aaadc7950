"""The state directory: who this node is, which life it is in, and what it must not forget.

Files, all 0600 in a directory 0700::

    lock            held by the one process that uses the directory; holds its id
    identity.json   node id and name
    incarnation     the number of the newest life
    cluster.json    the cluster this node founded or was invited to, and whom to dial first
    agreement       the durable part of the agreement (effect Persist), with a checksum
    invites.json    invitations given out: hashes of their secrets, uses left, expiry
    control.sock    the control socket of the running daemon

A file is replaced as a whole: written beside, synced, renamed, and the directory synced. So at
every instant each file is its old or its new self.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import stat
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

import msgspec

from greedw_p2p.config import Config, Member, Name
from greedw_p2p.errors import MalformedMessageError, StateDirError, StateDirInUseError
from greedw_p2p.ids import (
    Ballot,
    ClusterIdField,
    EntryIndexField,
    Incarnation,
    LineageIdField,
    NodeId,
    NodeIdField,
)
from greedw_p2p.limits import NAME_CHARS_MAX
from greedw_p2p.record import DIGEST_BYTES, Record, pack, unpack

SCHEMA: Final = 1
LOCK: Final = "lock"
IDENTITY: Final = "identity.json"
INCARNATION: Final = "incarnation"
CLUSTER: Final = "cluster.json"
AGREEMENT: Final = "agreement"
INVITES: Final = "invites.json"
CONTROL_SOCKET: Final = "control.sock"

_AGREEMENT_MAGIC: Final = b"gWagree1"
_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""No file of ours comes near it; what is larger is not read into memory."""

_DAMAGED_HINT: Final = (
    "restore the file from a backup, or use a new state directory and join again as a new node"
)


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who this node is, for as long as the directory exists."""

    schema: int
    node: NodeIdField
    name: Name


class ClusterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster that this node belongs to. ``contacts`` is empty for the founder."""

    schema: int
    cluster: ClusterIdField
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
    lineage: LineageIdField
    founder: bool
    contacts: tuple[Member, ...]


class Invite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation as its inviter keeps it. ``redeemed_by`` may ask again without a further use.

    ``secret_hash`` and ``token_id`` are hexadecimal; ``expires_s`` is the wall clock's, because it
    must hold across a restart.
    """

    token_id: str
    secret_hash: str
    expires_s: int
    uses_left: int
    wrong_guesses: int
    redeemed_by: tuple[NodeIdField, ...]


class Invites(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All invitations that may still be redeemed."""

    schema: int
    invites: tuple[Invite, ...]


class AcceptedConfig(Record, frozen=True):
    """A change of members that this node accepted and does not know to be chosen."""

    index: EntryIndexField
    ballot: Ballot
    config: Config


class Agreement(Record, frozen=True):
    """What a node that restarts must remember of the agreement."""

    lineage: LineageIdField
    committed_index: EntryIndexField
    committed: Config
    accepted: AcceptedConfig | None


StructT = TypeVar("StructT", bound=msgspec.Struct)


class StateDir:
    """A state directory that this process holds the lock of."""

    def __init__(self, path: Path, lock_fd: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path, *, name: str | None = None) -> Self:
        """Create or check the directory, lock it, and read or make the node's identity.

        ``name`` renames the node; without it a new node is named after its host.

        Raises:
            StateDirInUseError: another process uses it.
            StateDirError: it cannot be used; the message says why.
        """
        path = path.expanduser().absolute()
        _prepare_directory(path)
        lock_fd = _lock(path)
        try:
            return cls(path, lock_fd, _identity(path, name))
        except BaseException:
            os.close(lock_fd)
            raise

    def close(self) -> None:
        """Let the directory go; what is in it stays."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_incarnation(self) -> Incarnation:
        """Raise the number of this node's life, on disk, and return it.

        Call it before the first message of that life leaves.
        """
        last = 0
        data = self._read(INCARNATION)
        if data is not None:
            text = data.decode("ascii", errors="replace").strip()
            if not re.fullmatch(r"[0-9]{1,18}", text):
                raise _damaged(self.path / INCARNATION, "not a number")
            last = int(text)
        self._write(INCARNATION, f"{last + 1}\n".encode())
        return Incarnation(last + 1)

    def cluster(self) -> ClusterRecord | None:
        """Return the cluster this node belongs to, None if it is in none."""
        return self._read_json(CLUSTER, ClusterRecord)

    def write_cluster(self, record: ClusterRecord) -> None:
        """Remember the cluster, and nothing of one before."""
        self._remove(AGREEMENT)
        self._write_json(CLUSTER, record)

    def forget_cluster(self) -> None:
        """Forget the cluster; the node keeps its identity and its number of lives."""
        # The record last: a crash in between leaves a node that knows its cluster and asks to be
        # let in again, not one that remembers votes of a cluster it has forgotten.
        for name in (INVITES, AGREEMENT, CLUSTER):
            self._remove(name)

    def agreement(self) -> Agreement | None:
        """Return what was persisted of the agreement, None if nothing was."""
        data = self._read(AGREEMENT)
        if data is None:
            return None
        head, body = len(_AGREEMENT_MAGIC), len(_AGREEMENT_MAGIC) + DIGEST_BYTES
        if data[:head] != _AGREEMENT_MAGIC or data[head:body] != _checksum(data[body:]):
            raise _damaged(self.path / AGREEMENT, "its checksum does not match")
        try:
            return unpack(data[body:], Agreement)
        except MalformedMessageError as error:
            raise _damaged(self.path / AGREEMENT, str(error)) from error

    def write_agreement(self, agreement: Agreement) -> None:
        """Persist the durable part of the agreement; on return it is on the disk."""
        body = pack(agreement)
        self._write(AGREEMENT, _AGREEMENT_MAGIC + _checksum(body) + body)

    def invites(self) -> tuple[Invite, ...]:
        """Return the invitations that were given out."""
        found = self._read_json(INVITES, Invites)
        return () if found is None else found.invites

    def write_invites(self, invites: tuple[Invite, ...]) -> None:
        """Replace the invitations."""
        self._write_json(INVITES, Invites(SCHEMA, invites))

    def _read_json(self, name: str, kind: type[StructT]) -> StructT | None:
        data = self._read(name)
        return None if data is None else _parse_json(self.path / name, data, kind)

    def _write_json(self, name: str, value: msgspec.Struct) -> None:
        self._write(name, _format_json(value))

    def _read(self, name: str) -> bytes | None:
        return _read_file(self.path / name)

    def _write(self, name: str, data: bytes) -> None:
        _write_file(self.path / name, data)

    def _remove(self, name: str) -> None:
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
            _sync_directory(self.path)
        except OSError as error:
            raise StateDirError(f"cannot remove {path}: {error.strerror}") from error


def default_name() -> str:
    """Return what a node is called without ``--name``: the host's name, cleaned."""
    return clean_name(socket.gethostname().split(".")[0]) or "node"


def clean_name(text: str) -> str:
    """Return ``text`` without what would break a line, a column or a terminal."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-")[:NAME_CHARS_MAX]


def _prepare_directory(path: Path) -> None:
    """Make the directory, or check that the one that is there can be ours; then close it."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise StateDirError(
                f"{path} is not a directory", hint="choose another one: --state-dir DIR"
            ) from None
    except OSError as error:
        raise StateDirError(
            f"cannot create the state directory {path}: {error.strerror}",
            hint="choose one that you can write to: --state-dir DIR or GREEDW_STATE_DIR",
        ) from error
    found = path.stat()
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise StateDirError(
            f"the state directory {path} belongs to another user (uid {found.st_uid})",
            hint="run as that user, or choose another directory: --state-dir DIR",
        )
    if found.st_mode & stat.S_ISVTX:
        raise StateDirError(
            f"{path} is shared with others (sticky); a state directory holds secrets",
            hint=f"choose a directory of its own: --state-dir {path / 'greedw'}",
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise StateDirError(
            f"the state directory {path} is not writable", hint=f"chmod u+rwx {path}"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise StateDirError(
                f"cannot close the state directory {path} to others: {error.strerror}"
            ) from error


def _lock(path: Path) -> int:
    """Take the directory's lock, or say who holds it."""
    lock_path = path / LOCK
    try:
        # Not inherited by the worker: the lock must end with this process, however it ends.
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(
            f"the state directory {path} is not writable: {error.strerror}",
            hint="choose one that you can write to: --state-dir DIR or GREEDW_STATE_DIR",
        ) from error
    try:
        _give_to_owner(descriptor, path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateDirInUseError(
            f"the state directory {path} is in use by process {holder}",
            hint="stop that one first, or give this node a directory of its own: --state-dir DIR",
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise StateDirError(f"cannot lock {lock_path}: {error.strerror}") from error
    return descriptor


def _identity(path: Path, name: str | None) -> Identity:
    """Read the node's identity, or make it; rename the node if asked to."""
    file = path / IDENTITY
    data = _read_file(file)
    identity = None if data is None else _parse_json(file, data, Identity)
    if identity is None:
        identity = Identity(SCHEMA, NodeId(os.urandom(16).hex()), name or default_name())
    elif name is None or name == identity.name:
        return identity
    else:
        identity = Identity(SCHEMA, identity.node, name)
    _write_file(file, _format_json(identity))
    return identity


def _parse_json(path: Path, data: bytes, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error


def _format_json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _read_file(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateDirError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise _damaged(path, "far too large")
    return data


def _write_file(path: Path, data: bytes) -> None:
    """Replace a file so that a crash at any instant leaves the old one or the new one."""
    beside = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            _give_to_owner(descriptor, path.parent)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise StateDirError(
            f"cannot write {path}: {error.strerror}",
            hint="check the free space and the permissions of the state directory",
        ) from error


def _give_to_owner(descriptor: int, directory: Path) -> None:
    """Let a file that root makes belong to the directory's user, whose daemon must read it."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _damaged(path: Path, reason: str) -> StateDirError:
    return StateDirError(f"{path} is damaged: {reason}", hint=_DAMAGED_HINT)
