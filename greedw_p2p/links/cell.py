"""One published measurement: a node's word about the link from one peer to itself."""

from typing import Annotated, Final

import msgspec

from greedw_p2p.ids import Counter, IncarnationField, NodeIdField
from greedw_p2p.record import Record

CODE_UNKNOWN: Final = -1
"""A cost not measured yet. Planning takes the optimistic default for it."""

CODE_MAX: Final = 200

Code = Annotated[int, msgspec.Meta(ge=CODE_UNKNOWN, le=CODE_MAX)]
"""A cost on the logarithmic scale of ``links.scale``: 8 steps to a doubling, about 9 % each."""


class LinkCell(Record, frozen=True, order=True):
    """What ``writer`` measured of the directed link ``peer`` -> ``writer``.

    Only ``writer`` changes its cells, raising ``version`` each time within its ``incarnation``;
    of two words about one link the later (incarnation, version) counts. The receiver is the
    writer, because only the receiving end sees when bytes arrive. ``latency`` codes microseconds
    of half the minimum round trip, ``cost`` codes nanoseconds per MiB.
    """

    writer: NodeIdField
    peer: NodeIdField
    incarnation: IncarnationField
    version: Counter
    latency: Code
    cost: Code
