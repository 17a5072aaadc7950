"""The roster: every life of every node heard of, and what is believed of it.

Rules, after SWIM (Das et al., DSN 2002):

1. Of two words about one node the one about the later incarnation counts.
2. About one incarnation, LEFT and DEAD are final. Between ALIVE and SUSPECT the word with the
   higher ``word`` number counts, and SUSPECT over ALIVE at the same number.
3. Only a node itself raises its word number: it does so to refute a suspicion it hears of.
"""

from greedw_p2p.config import Member
from greedw_p2p.ids import NodeId
from greedw_p2p.limits import MEMBERS_MAX
from greedw_p2p.membership.dissemination import TransmitQueue
from greedw_p2p.membership.rumour import Liveness, Rumour

RUMOURS_PER_MESSAGE = 32


def supersedes(new: Rumour, old: Rumour) -> bool:
    """Tell whether ``new`` replaces ``old``, which speaks of the same node."""
    return _rank(new) > _rank(old)


def _rank(rumour: Rumour) -> tuple[int, int, int, int]:
    final = rumour.liveness if rumour.liveness >= Liveness.DEAD else 0
    return (rumour.member.incarnation, final, rumour.word, rumour.liveness)


class Roster:
    """What this node believes of every node it has heard of, itself included."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self._rumours: dict[NodeId, Rumour] = {}
        self._news: TransmitQueue[str, Rumour] = TransmitQueue()
        self._learn(Rumour(me, 0, Liveness.ALIVE))

    def merge(self, rumours: tuple[Rumour, ...]) -> tuple[Member, ...]:
        """Take in what a peer said; return the lives that are news here."""
        learned: list[Member] = []
        for rumour in rumours:
            if rumour.member.node == self._me.node:
                self._refute(rumour)
            elif self._learn(rumour) and rumour.liveness is Liveness.ALIVE:
                learned.append(rumour.member)
        return tuple(learned)

    def saw(self, member: Member) -> None:
        """Note that a life of a node was met, over a connection of our own."""
        self._learn(Rumour(member, self._word_of(member), Liveness.ALIVE))

    def declare(self, member: Member, liveness: Liveness) -> None:
        """Spread a word about another node at the word number it is known by."""
        self._learn(Rumour(member, self._word_of(member), liveness))

    def rumour_of(self, node: NodeId) -> Rumour | None:
        """Return what is believed of a node, None if it was never heard of."""
        return self._rumours.get(node)

    def __len__(self) -> int:
        return len(self._rumours)

    def least_alive_first(self) -> tuple[NodeId, ...]:
        """Return the other nodes, those that left or died first."""
        others = (rumour for node, rumour in self._rumours.items() if node != self._me.node)
        order = sorted(others, key=lambda rumour: (-rumour.liveness, rumour.member.node))
        return tuple(rumour.member.node for rumour in order)

    def forget(self, node: NodeId) -> None:
        """Believe nothing of a node, until it is heard of again."""
        self._rumours.pop(node, None)
        self._news.drop(node)

    def everything(self) -> tuple[Rumour, ...]:
        """Return all beliefs that one message takes, sorted by node."""
        return tuple(self._rumours[node] for node in sorted(self._rumours)[:MEMBERS_MAX])

    def news(self) -> tuple[Rumour, ...]:
        """Return what one message should carry."""
        return self._news.take(RUMOURS_PER_MESSAGE, len(self._rumours))

    @property
    def has_news(self) -> bool:
        """Tell whether anything is left to spread."""
        return len(self._news) > 0

    def _word_of(self, member: Member) -> int:
        known = self._rumours.get(member.node)
        if known is None or known.member.incarnation != member.incarnation:
            return 0
        return known.word

    def _learn(self, rumour: Rumour) -> bool:
        known = self._rumours.get(rumour.member.node)
        if known is not None and not supersedes(rumour, known):
            return False
        self._rumours[rumour.member.node] = rumour
        self._news.put(rumour.member.node, rumour)
        return True

    def _refute(self, rumour: Rumour) -> None:
        """Answer a suspicion about this very life with a higher word."""
        mine = self._rumours[self._me.node]
        if rumour.member.incarnation != self._me.incarnation:
            return
        if rumour.liveness is Liveness.SUSPECT and rumour.word >= mine.word:
            self._learn(Rumour(self._me, rumour.word + 1, Liveness.ALIVE))
