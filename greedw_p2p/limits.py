"""Every limit of greedw in one place, with its unit and its reason."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

TICK_US: Final = 250_000
"""Heartbeat interval, microseconds. Timers of the agreement are multiples of it."""

SUSPECT_AFTER_TICKS: Final = 8
"""Silence after which a peer counts as unreachable: 2 s. A peer's end of file counts at once."""

MEMBERS_MAX: Final = 200
"""Members of one cluster. The control mesh has a connection per pair, and the view a cell per
ordered pair, which must fit one message."""

NAME_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 4 * KIB
"""Reasons and error texts that travel; a worker's last lines are cut to this."""

CHUNK_BYTES_MAX: Final = 256 * KIB
"""Largest pipelined slice of a bucket: beyond it nothing is gained (measured on loopback)."""

LINK_CELL_BYTES_MAX: Final = 96
"""A link cell in msgpack: two ids, a life, a version and two codes."""

CONTROL_HEADER_BYTES_MAX: Final = 4 * MIB
"""Largest msgpack header: an entry and a view of ``MEMBERS_MAX`` members with all links fit."""

CONTROL_BODY_BYTES_MAX: Final = 64 * KIB
"""Largest body on a control connection: a probe chunk or a piece of a snapshot. Small, so that a
heartbeat never waits long behind one."""

BULK_HEADER_BYTES_MAX: Final = 256 * KIB
"""Largest header on a bulk connection: the reports of a subtree."""

MESSAGE_ITEMS_MAX: Final = 65_536
"""Elements of any array in a message."""

RECEIVE_SLOTS: Final = 8
"""Chunks of one child that may wait to be summed; a child with full slots is not read."""

ENTRIES_KEPT: Final = 8
"""Newest committed entries that are kept for peers that are behind."""

HELD_MESSAGES_MAX: Final = 8
"""Messages of later entries held back until this node has caught up, per peer."""

assert CHUNK_BYTES_MAX >= CONTROL_BODY_BYTES_MAX
assert MESSAGE_ITEMS_MAX > MEMBERS_MAX * 8
assert MEMBERS_MAX * MEMBERS_MAX <= MESSAGE_ITEMS_MAX
assert MEMBERS_MAX * MEMBERS_MAX * LINK_CELL_BYTES_MAX < CONTROL_HEADER_BYTES_MAX
