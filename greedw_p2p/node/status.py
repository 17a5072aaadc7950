"""What a node tells of itself: plain values for ``greedw status``, ``jobs`` and ``topology``."""

from enum import StrEnum

import msgspec

from greedw_p2p.ids import JobId, NodeId


class NodeState(StrEnum):
    """What the node is doing, in one word."""

    JOINING = "joining"
    MEMBER = "member"
    FROZEN = "frozen"
    LEAVING = "leaving"
    LEFT = "left"


class MemberStatus(msgspec.Struct, frozen=True):
    """One member as this node sees it.

    ``state``: alive, suspected, failed, or restarted (its machine is back, in another life).
    """

    id: NodeId
    name: str
    incarnation: int
    address: str
    state: str
    heard_ms: int | None
    is_leader: bool
    is_self: bool
    committed: int
    share: int
    compute_ms: float
    wait_ms: float
    transfer_ms: float
    sent_bytes: int
    """Bytes this member sent over bulk connections since the job began, as it reported them."""


class JobStatus(msgspec.Struct, frozen=True):
    """One job. ``digests`` maps a node's name to its state digest after its newest round.

    ``state``: preparing, running, paused, finished, stopped, failed. ``reason`` says why it is
    paused, stopped or failed: which peer, which link, which phase.
    """

    id: JobId
    kind: str
    state: str
    round: int
    rounds: int
    epochs: int
    batch: int
    samples: int
    held_out: int
    loss: float | None
    accuracy: float | None
    accuracy_round: int
    digests: dict[str, str]
    reason: str


class EdgeStatus(msgspec.Struct, frozen=True):
    """One edge of the tree, with the costs that the view holds for both directions."""

    node: str
    parent: str
    up_mbit: float | None
    down_mbit: float | None
    latency_ms: float | None


class TopologyStatus(msgspec.Struct, frozen=True):
    """The tree in force, nodes by name, and what the plan expects of it."""

    entry: int
    root: str | None
    edges: tuple[EdgeStatus, ...]
    shares: dict[str, int]
    predicted_ms: float | None
    bound_ms: float | None
    links_known: int
    links_wanted: int


class NodeStatus(msgspec.Struct, frozen=True):
    """The whole status. ``pause`` says why nothing moves, empty when it does.

    ``recoverable`` is false where so many members have restarted that no quorum can come back.
    """

    node: NodeId
    name: str
    incarnation: int
    address: str
    cluster: str
    lineage: str
    state: NodeState
    committed: int
    leader: str | None
    quorum: int
    hears_quorum: bool
    pause: str
    members: tuple[MemberStatus, ...]
    jobs: tuple[JobStatus, ...]
    topology: TopologyStatus
    recoverable: bool = True
