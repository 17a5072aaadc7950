"""What a node knows when its process starts."""

from dataclasses import dataclass

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import ClusterId, EntryIndex, LineageId


@dataclass(frozen=True, slots=True)
class Boot:
    """The durable part of a node's state, or what an invitation told.

    ``config`` is the newest known committed config, of entry ``committed_index``: the founder's own
    at the beginning, None for a newcomer, and one with an older life of this node after a
    restart. ``contacts`` are whom to dial first.
    """

    cluster: ClusterId
    cluster_name: str
    lineage: LineageId
    committed_index: EntryIndex
    config: Config | None
    contacts: tuple[Member, ...]
