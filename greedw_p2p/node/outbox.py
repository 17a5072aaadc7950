"""The effects of one event, in order, and messages of the node to itself."""

from collections import deque

from greedw_p2p.ids import MemberId
from greedw_p2p.node.effects import Effect, Note, Send, Severity
from greedw_p2p.wire.messages import ControlMessage


class Outbox:
    """Collects effects; what a node sends to itself is handled without leaving it."""

    def __init__(self, me: MemberId) -> None:
        self._me = me
        self._effects: list[Effect] = []
        self._to_self: deque[ControlMessage] = deque()

    def emit(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def send(self, to: MemberId, message: ControlMessage) -> None:
        """Send a message to a member, which may be this node."""
        if to == self._me:
            self._to_self.append(message)
        else:
            self._effects.append(Send(to, message))

    def send_all(self, members: tuple[MemberId, ...], message: ControlMessage) -> None:
        """Send a message to each member; to this node last, so that others need not wait."""
        for member in members:
            if member != self._me:
                self.send(member, message)
        if self._me in members:
            self.send(self._me, message)

    def note(self, severity: Severity, event: str, **fields: str | float | None) -> None:
        """Add a line for the log."""
        self._effects.append(Note(severity, event, fields))

    def next_to_self(self) -> ControlMessage | None:
        """Take the oldest message of this node to itself."""
        return self._to_self.popleft() if self._to_self else None

    @property
    def has_to_self(self) -> bool:
        """Tell whether a message of this node to itself waits."""
        return bool(self._to_self)

    def take(self) -> list[Effect]:
        """Return the effects so far and start anew."""
        effects, self._effects = self._effects, []
        return effects
