"""Fetching the bytes of a result that no attempt of this node will bring."""

from greedw_p2p.ids import Ballot, NodeId
from greedw_p2p.limits import TICK_US
from greedw_p2p.log.entry import Entry
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import CancelAttempt, FetchResult, Severity
from greedw_p2p.node.events import AttemptBroken
from greedw_p2p.node.open_entry import OpenEntry

FETCH_AGAIN_TICKS = 4
"""Pause after a fetch that failed."""

BYTES_LATE_TICKS = 20
"""How long a result may still come down the tree once it is accepted, before it is fetched. It was
whole at the root by then: a node on the way has lost it, and need not have told."""


def fetch_unless_coming(context: Context, entry: OpenEntry, value: Entry) -> None:
    """Fetch bytes that no attempt of this node will bring.

    The root of an attempt cannot lose them meanwhile: the sums of the next round take their
    place, and those need this node's part.
    """
    attempt, now_us = entry.attempt, context.now_us
    if entry.fetching == value.result or now_us < entry.fetch_again_us:
        return
    if attempt is not None and not attempt.broken:
        if entry.missed_us is None:
            entry.missed_us = now_us
        if now_us - entry.missed_us < BYTES_LATE_TICKS * TICK_US:
            return
        attempt.broken = "the result has not come down the tree"
        context.out.emit(CancelAttempt(entry.index, attempt.ballot))
    entry.fetching = value.result
    holder = _holder(context, entry)
    ballot = Ballot(0, holder) if attempt is None else attempt.ballot
    context.out.emit(FetchResult(entry.index, ballot, value.result, holder))


def note_failed_fetch(context: Context, entry: OpenEntry, event: AttemptBroken) -> None:
    """Note that bytes did not come; they are asked for again, of another member."""
    entry.fetching = None
    entry.fetches_failed += 1
    entry.fetch_again_us = context.now_us + FETCH_AGAIN_TICKS * TICK_US
    context.out.note(
        Severity.WARNING,
        "result not fetched",
        entry=entry.index,
        peer=context.name_of(event.peer),
        reason=event.reason,
    )


def _holder(context: Context, entry: OpenEntry) -> NodeId:
    """Return whom to ask for bytes: whoever was named, then in turn the others that live."""
    config = _ledger(context).config
    named = _ledger(context).leader if entry.holder is None else entry.holder
    others = [m.node for m in config.members if m.node not in (named, context.me.node)]
    living = [
        node
        for node in (named, *others)
        if (member := config.find(node)) is not None and context.peers.is_reachable(member.id)
    ]
    return living[entry.fetches_failed % len(living)] if living else named


def _ledger(context: Context) -> Ledger:
    assert context.ledger is not None, "bytes belong to an entry after a known one"
    return context.ledger
