"""The config: who is a member, in the order they were admitted, and what counts as a quorum."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from greedw_p2p.ids import IncarnationField, MemberId, NodeId, NodeIdField
from greedw_p2p.limits import MEMBERS_MAX, NAME_CHARS_MAX
from greedw_p2p.record import Record

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Host = Annotated[str, msgspec.Meta(min_length=2, max_length=64)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Address(Record, frozen=True, order=True):
    """Where a node listens: a numeric address, never a host name, and a TCP port."""

    host: Host
    port: Port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Member(Record, frozen=True):
    """A node in the config, in one of its lives, with where to reach it and its name for people."""

    node: NodeIdField
    incarnation: IncarnationField
    name: Name
    address: Address

    @property
    def id(self) -> MemberId:
        """The exact life that votes and takes part."""
        return MemberId(self.node, self.incarnation)


class Config(Record, frozen=True):
    """The members after one entry of the log, senior first; joiners are appended.

    At most one life of a node is a member. Seniority breaks ties, not ids: a newcomer must not
    become the decider of a two-node cluster.
    """

    members: Annotated[tuple[Member, ...], msgspec.Meta(min_length=1, max_length=MEMBERS_MAX)]

    def __post_init__(self) -> None:
        nodes = [member.node for member in self.members]
        if len(set(nodes)) != len(nodes):
            # A ValueError, because msgspec reports it as a mismatch when a peer sent the config.
            raise ValueError("a node is listed twice in a config")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The members' node ids, senior first."""
        return tuple(member.node for member in self.members)

    @property
    def ids(self) -> tuple[MemberId, ...]:
        """The members' exact ids, senior first."""
        return tuple(member.id for member in self.members)

    def __contains__(self, member: object) -> bool:
        return member in self.ids

    def find(self, node: NodeId) -> Member | None:
        """Return the member that is a life of ``node``, or None."""
        return next((member for member in self.members if member.node == node), None)

    def is_quorum(self, voters: Iterable[MemberId]) -> bool:
        """Tell whether ``voters`` hold a majority, or exactly half with the senior member.

        Of a set and its complement exactly one is a quorum; recovery relies on that.
        """
        given = set(voters)
        present = [member for member in self.ids if member in given]
        twice = 2 * len(present)
        return twice > len(self.members) or (twice == len(self.members) and self.ids[0] in present)

    @property
    def quorum_size(self) -> int:
        """Members that suffice with the senior one among them."""
        return (len(self.members) + 1) // 2

    def changed(
        self, *, removed: Iterable[MemberId] = (), joined: Iterable[Member] = ()
    ) -> "Config":
        """Return the config without ``removed`` and older lives, with ``joined`` appended."""
        gone = set(removed)
        newcomers = tuple(joined)
        replaced = {member.node for member in newcomers}
        kept = (m for m in self.members if m.id not in gone and m.node not in replaced)
        return Config((*kept, *newcomers))
