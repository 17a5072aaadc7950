"""Entries of the replicated log."""

import math
from enum import StrEnum

from greedw_p2p.config import Config
from greedw_p2p.ids import (
    ContentDigestField,
    Counter,
    EntryId,
    EntryIdField,
    EntryIndexField,
    LineageIdField,
    NodeIdField,
    StateDigestField,
)
from greedw_p2p.jobs.spec import JobState
from greedw_p2p.record import Record, digest
from greedw_p2p.view import ViewDelta


class EntryKind(StrEnum):
    """What an entry decides."""

    CONFIG = "config"
    """Members, job start, job stop, fresh measurements: no computation."""

    ROUND = "round"
    """A training round: its result is applied to the state."""

    EVALUATION = "evaluation"
    """The held-out samples were scored; the state stays."""


class RoundOutcome(Record, frozen=True):
    """What a round or an evaluation came to, beside the result's bytes.

    ``loss_sum`` was added in the order of the tree; the root's figure is what counts.
    """

    samples: Counter
    loss_sum: float
    correct: Counter


class Entry(Record, frozen=True):
    """One decided step.

    ``previous`` chains it to the entry before, ``state`` names the job state it starts from,
    ``result`` the bytes that a round applies to that state.

    ``config`` and ``leader`` are what holds after it; the leader owns ballot 0 of the next entry.
    """

    lineage: LineageIdField
    index: EntryIndexField
    kind: EntryKind
    previous: EntryIdField
    state: StateDigestField
    result: ContentDigestField
    outcome: RoundOutcome | None
    config: Config
    leader: NodeIdField
    job: JobState | None
    delta: ViewDelta

    def id(self) -> EntryId:
        """Return the digest of the whole entry."""
        return EntryId(digest(self))

    @property
    def is_finite(self) -> bool:
        """Tell whether the figures are numbers; with NaN an entry would not even equal itself."""
        loss = None if self.job is None else self.job.loss
        sums = None if self.outcome is None else self.outcome.loss_sum
        return all(math.isfinite(figure) for figure in (loss, sums) if figure is not None)
