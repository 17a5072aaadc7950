"""The oracle: checks the invariants after every effect, from messages and effects alone.

It keeps its own books, and never asks a node what it believes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from greedw_p2p.config import Config
from greedw_p2p.ids import Ballot, EntryId, EntryIndex, LineageId, MemberId, StateDigest
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.testing.worker import digest_of, gradient, next_state
from greedw_p2p.wire.messages import Accept, Ack, Commit, ControlMessage


class ViolationError(AssertionError):
    """An invariant does not hold. The message ends with how to replay the run."""


@dataclass(slots=True)
class _Chain:
    """What the oracle knows of one lineage."""

    configs: dict[EntryIndex, Config] = field(default_factory=dict[EntryIndex, Config])
    entries: dict[EntryId, Entry] = field(default_factory=dict[EntryId, Entry])
    chosen: dict[EntryIndex, EntryId] = field(default_factory=dict[EntryIndex, EntryId])
    votes: dict[tuple[EntryIndex, Ballot, EntryId], set[MemberId]] = field(
        default_factory=dict[tuple[EntryIndex, Ballot, EntryId], "set[MemberId]"]
    )
    values: dict[tuple[EntryIndex, Ballot], EntryId] = field(
        default_factory=dict[tuple[EntryIndex, Ballot], EntryId]
    )
    states: dict[EntryId, StateDigest] = field(default_factory=dict[EntryId, StateDigest])
    counted: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])


class Oracle:
    """Watches every message and every commit of a simulated cluster."""

    def __init__(self, replay: Callable[[], str]) -> None:
        self._replay = replay
        self._chains: dict[LineageId, _Chain] = {}
        self._flips: dict[MemberId, EntryId] = {}
        self.rounds = 0

    def founded(self, lineage: LineageId, config: Config) -> None:
        """Take note of a lineage's first config."""
        self._chains.setdefault(lineage, _Chain()).configs[EntryIndex(0)] = config

    def sent(self, sender: MemberId, lineage: LineageId, message: ControlMessage) -> None:
        """Look at a message as it leaves its sender."""
        chain = self._chains[lineage]
        self._require(sender not in self._flips, f"{sender} works on a state that is not committed")
        match message:
            case Accept(ballot, entry):
                self._accept_sent(chain, sender, ballot, entry)
            case Ack(index, _, ballot, entry_id):
                chain.votes.setdefault((index, ballot, entry_id), set()).add(sender)
            case Commit(entry):
                self._check_chosen(chain, sender, entry)
            case _:
                pass

    def committed(self, member: MemberId, lineage: LineageId, entry: Entry) -> None:
        """Check an entry that a node has committed."""
        chain = self._chains[lineage]
        flipped = self._flips.pop(member, None)
        self._require(
            flipped in (None, entry.id()), f"{member} took over the state of another entry"
        )
        first = entry.index not in chain.chosen
        if first:
            chain.entries[entry.id()] = entry
            self._choose(chain, member, entry)
        self._require(
            chain.chosen[entry.index] == entry.id(),
            f"two values for entry {entry.index}: {member} committed another",
        )

    def flipped(self, member: MemberId, entry_id: EntryId) -> None:
        """Take note that a state became current; its entry must be committed before all else."""
        self._require(member not in self._flips, f"{member} took over two states for one entry")
        self._flips[member] = entry_id

    def applied(self, lineage: LineageId, entry_id: EntryId, state: StateDigest) -> None:
        """Check that all replicas get the same state from the same entry."""
        chain = self._chains[lineage]
        known = chain.states.setdefault(entry_id, state)
        self._require(known == state, "replicas differ after the same entry")

    def _accept_sent(self, chain: _Chain, sender: MemberId, ballot: Ballot, entry: Entry) -> None:
        entry_id = entry.id()
        known = chain.values.setdefault((entry.index, ballot), entry_id)
        self._require(known == entry_id, f"two values in ballot {ballot} of entry {entry.index}")
        chain.entries[entry_id] = entry
        # The proposer's own vote never leaves it; it votes for what it proposes or not at all.
        chain.votes.setdefault((entry.index, ballot, entry_id), set()).add(sender)

    def _check_chosen(self, chain: _Chain, member: MemberId, entry: Entry) -> None:
        entry_id = entry.id()
        if chain.chosen.get(entry.index) == entry_id:
            return
        config = chain.configs.get(EntryIndex(entry.index - 1))
        self._require(config is not None, f"entry {entry.index} was committed before its parent")
        assert config is not None, "checked above"
        # The votes of a node that is a quorum by itself never leave it.
        self._require(
            config.is_quorum([member])
            or any(
                config.is_quorum(voters)
                for (index, _, voted), voters in sorted(
                    chain.votes.items(), key=lambda item: item[0]
                )
                if index == entry.index and voted == entry_id
            ),
            f"entry {entry.index} was committed without a quorum of its config",
        )

    def _choose(self, chain: _Chain, member: MemberId, entry: Entry) -> None:
        parent = chain.chosen.get(EntryIndex(entry.index - 1))
        if parent is not None:
            self._require(entry.previous == parent, f"entry {entry.index} breaks the chain")
        config = chain.configs.get(EntryIndex(entry.index - 1))
        if config is not None:
            self._check_chosen(chain, member, entry)
        chain.chosen[entry.index] = entry.id()
        chain.configs[entry.index] = entry.config
        if entry.kind is EntryKind.ROUND:
            self._check_round(chain, entry)

    def _check_round(self, chain: _Chain, entry: Entry) -> None:
        """Check that a round's result is the sum of exactly the samples that are its own."""
        job = entry.job
        self._require(job is not None, "a round without a job")
        assert job is not None, "checked above"
        number = job.next_round - 1
        key = (job.spec.id, number)
        chain.counted[key] = chain.counted.get(key, 0) + 1
        self._require(chain.counted[key] == 1, f"round {number} was counted twice")
        self._require(
            number == 0 or (job.spec.id, number - 1) in chain.counted,
            f"round {number} was committed before the one before it",
        )
        start, stop = job.spec.batch_range(number)
        values = gradient(job.spec.epoch_of(number), start, stop - start)
        self._require(entry.result == digest_of(values), f"round {number} summed other samples")
        self.rounds += 1
        self.applied(entry.lineage, entry.id(), next_state(entry.state, values))

    def _require(self, holds: bool, fault: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            raise ViolationError(f"{fault}\n{self._replay()}")
