"""The heartbeat: what a node says of itself, each tick, to every node it knows."""

from typing import Annotated

import msgspec

from greedw_p2p.ids import (
    Counter,
    EntryIdField,
    EntryIndexField,
    NodeIdField,
    StateDigestField,
)
from greedw_p2p.limits import MEMBERS_MAX
from greedw_p2p.record import Record


class Heartbeat(Record, frozen=True):
    """Sent each tick to all known nodes.

    ``committed`` and ``entry_id`` name the newest committed entry, ``state`` the digest of the job
    state after it (empty while it is not computed yet). ``deaf`` lists nodes that the sender does
    not hear; ``hears_quorum`` whether it hears a quorum of its config both ways. ``wants_in`` and
    ``leaving`` ask for admission and removal. ``sent_us`` is the sender's clock; ``echo_us`` gives
    back the newest ``sent_us`` of the receiver and ``held_us`` how long ago that came in.
    """

    committed: EntryIndexField
    entry_id: EntryIdField
    state: StateDigestField
    deaf: Annotated[tuple[NodeIdField, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    hears_quorum: bool
    wants_in: bool
    leaving: bool
    sent_us: Counter
    echo_us: Counter
    held_us: Counter
