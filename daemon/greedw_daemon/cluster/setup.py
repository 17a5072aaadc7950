"""Founding and joining a cluster: what is written to the state directory, daemon running or not."""

import os
from typing import Any, Final

from greedw_daemon.cluster.join import INCOMPATIBLE, read_token, redeem
from greedw_daemon.cluster.state_dir import SCHEMA, ClusterRecord, StateDir, clean_name
from greedw_p2p.config import Address, Member
from greedw_p2p.errors import DaemonError
from greedw_p2p.ids import ClusterId, LineageId, MemberId
from greedw_p2p.invitation import hash_of_cluster
from greedw_p2p.wire.messages import JoinAccepted

WRONG_USAGE: Final = 2


def found_cluster(directory: StateDir, cluster_name: str) -> dict[str, Any]:
    """Make a new cluster with this node as its first member.

    Raises:
        DaemonError: the name cannot be used as it is, or the node is in a cluster already.
    """
    name = _checked_name(cluster_name)
    _check_free(directory, "init")
    record = ClusterRecord(
        schema=SCHEMA,
        cluster=ClusterId(os.urandom(16).hex()),
        name=name,
        lineage=LineageId(os.urandom(16).hex()),
        founder=True,
        contacts=(),
    )
    directory.write_cluster(record)
    return _answer(directory, record)


async def join_cluster(directory: StateDir, token: str, address: Address) -> dict[str, Any]:
    """Redeem an invitation and remember the cluster.

    Args:
        directory: of a node that is in no cluster.
        token: what the inviter printed.
        address: where this node's daemon listens.

    Raises:
        DaemonError: see ``read_token`` and ``redeem``; or the node is in a cluster already.
    """
    invitation = read_token(token)
    record = directory.cluster()
    if record is not None and hash_of_cluster(record.cluster) == invitation.cluster_hash:
        raise DaemonError(
            f"{directory.path} belongs to that cluster, {record.name}, already",
            hint="nothing to do; see greedw status",
            exit_code=INCOMPATIBLE,
        )
    _check_free(directory, "join")
    # A life of its own, because it speaks: what is said now must not be said by two lives.
    me = Member(
        directory.identity.node, directory.next_incarnation(), directory.identity.name, address
    )
    record = _record_of(await redeem(invitation, me), me.id)
    _check_free(directory, "join")
    directory.write_cluster(record)
    return _answer(directory, record)


def _checked_name(name: str) -> str:
    """Return the name if it can stand in any line and column as it is; nothing is changed."""
    cleaned = clean_name(name)
    if cleaned != name or not name:
        hint = "one or more letters, digits, and . _ + -, 64 at most"
        raise DaemonError(
            f"{name!r} cannot be the name of a cluster",
            hint=f"{hint}; for instance {cleaned}" if cleaned else hint,
            exit_code=WRONG_USAGE,
        )
    return name


def _record_of(accepted: JoinAccepted, me: MemberId) -> ClusterRecord:
    return ClusterRecord(
        schema=SCHEMA,
        cluster=accepted.cluster,
        name=accepted.cluster_name,
        lineage=accepted.lineage,
        founder=False,
        contacts=tuple(m for m in accepted.members if m.node != me.node),
    )


def _check_free(directory: StateDir, command: str) -> None:
    record = directory.cluster()
    if record is not None:
        raise DaemonError(
            f"the node in {directory.path} belongs to the cluster {record.name} already, "
            f"so it cannot {command}",
            hint="greedw leave takes it out; or use another directory: --state-dir DIR",
            exit_code=INCOMPATIBLE,
        )


def _answer(directory: StateDir, record: ClusterRecord) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "node": directory.identity.node,
        "name": directory.identity.name,
        "cluster": record.cluster,
        "cluster_name": record.name,
    }
