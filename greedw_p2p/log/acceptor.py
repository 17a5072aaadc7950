"""The acceptor of one entry: it promises, accepts, and forgets nothing while its entry is open.

Rules (Paxos, single decree; L. Lamport, "The Part-Time Parliament", ACM TOCS 16 (1998)):

1. A new acceptor has promised and accepted nothing, which is below every ballot.
2. A promise to ballot b refuses every lower ballot for ever; the same ballot again gets the same
   answer.
3. Accepting at ballot b is a promise to b too.
4. The acceptor of entry i exists from the commit of i-1 to the commit of i; nothing of it is
   carried over to i+1.
5. Ballot 0 belongs to the leader that entry i-1 named. It is the lowest ballot of its entry, so no
   promise is needed before it.

A process that restarts comes back as a new incarnation, which is no member until an entry admits
it: so the acceptor lives in memory only.
"""

from greedw_p2p.ids import Ballot
from greedw_p2p.log.entry import Entry


class Acceptor:
    """Votes of this node on one entry of the log."""

    def __init__(self) -> None:
        self.promised: Ballot | None = None
        self.accepted_ballot: Ballot | None = None
        self.accepted: Entry | None = None

    def refuses(self, ballot: Ballot) -> bool:
        """Tell whether a higher ballot was promised."""
        return self.promised is not None and ballot < self.promised

    def promise(self, ballot: Ballot) -> bool:
        """Promise to take part in no ballot below this one; False where that is too late."""
        if self.refuses(ballot):
            return False
        self.promised = ballot
        return True

    def accept(self, ballot: Ballot, entry: Entry) -> bool:
        """Accept the entry at this ballot; False where a higher ballot was promised.

        The caller has made sure that the state before the entry and all its bytes are in memory,
        and persisted a change of config, before it calls: after this the vote may be counted.
        """
        if self.refuses(ballot):
            return False
        assert self.accepted_ballot != ballot or self.accepted == entry, "two values in one ballot"
        self.promised = ballot
        self.accepted_ballot = ballot
        self.accepted = entry
        return True
