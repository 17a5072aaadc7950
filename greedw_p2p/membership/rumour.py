"""A rumour: one word about one life of a node, as gossip carries it."""

from enum import IntEnum

from greedw_p2p.config import Member
from greedw_p2p.ids import Counter
from greedw_p2p.record import Record


class Liveness(IntEnum):
    """What is believed of a life of a node, weakest first."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Rumour(Record, frozen=True):
    """One word about one life of a node; ``word`` counts the refutations it has made."""

    member: Member
    word: Counter
    liveness: Liveness
