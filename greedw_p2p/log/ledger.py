"""The ledger: the newest committed entry and what follows from the chain up to it."""

from collections import deque
from collections.abc import Iterator

from greedw_p2p.config import Config
from greedw_p2p.ids import (
    NO_CONTENT,
    NO_ENTRY,
    NO_STATE,
    EntryId,
    EntryIndex,
    LineageId,
    NodeId,
)
from greedw_p2p.jobs.spec import JobPhase, JobState
from greedw_p2p.limits import ENTRIES_KEPT
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.plan.fold import genesis_view, next_view
from greedw_p2p.view import View, ViewDelta

JOBS_KEPT = 100
"""Ended jobs that a node remembers for ``greedw jobs``."""


def genesis(lineage: LineageId, config: Config) -> Entry:
    """Return entry 0 of a lineage, which nobody votes on: its one member leads."""
    return Entry(
        lineage=lineage,
        index=EntryIndex(0),
        kind=EntryKind.CONFIG,
        previous=NO_ENTRY,
        state=NO_STATE,
        result=NO_CONTENT,
        outcome=None,
        config=config,
        leader=config.nodes[0],
        job=None,
        delta=ViewDelta(),
    )


class Ledger:
    """Committed entries, newest last, and the view that the next entry is planned from."""

    def __init__(self, entry: Entry, view: View) -> None:
        self.entry = entry
        self.entry_id = entry.id()
        self.view = view
        self._recent: deque[Entry] = deque([entry], maxlen=ENTRIES_KEPT)
        self.job_changed_at = entry.index
        """The newest entry that changed the job: a round, an evaluation, its start or its end."""

        self._folded: tuple[Config, ViewDelta, View] | None = None
        self._ended: deque[JobState] = deque(maxlen=JOBS_KEPT)

    @classmethod
    def founded(cls, lineage: LineageId, config: Config) -> "Ledger":
        """Return the ledger of a new lineage."""
        return cls(genesis(lineage, config), genesis_view(config))

    @property
    def index(self) -> EntryIndex:
        """Index of the newest committed entry."""
        return self.entry.index

    @property
    def config(self) -> Config:
        """The config that votes on the next entry."""
        return self.entry.config

    @property
    def leader(self) -> NodeId:
        """The owner of ballot 0 of the next entry."""
        return self.entry.leader

    @property
    def job(self) -> JobState | None:
        """The newest job in the log, running or ended."""
        return self.entry.job

    @property
    def running_job(self) -> JobState | None:
        """The job in progress, if any."""
        job = self.entry.job
        return job if job is not None and job.phase is JobPhase.RUNNING else None

    def jobs(self) -> Iterator[JobState]:
        """Yield the jobs this node has seen in the log, newest last."""
        yield from self._ended
        if self.entry.job is not None:
            yield self.entry.job

    def is_next(self, index: EntryIndex, previous: EntryId) -> bool:
        """Tell whether a message speaks of the entry after the newest committed one."""
        return index == self.index + 1 and previous == self.entry_id

    def view_after(self, config: Config, delta: ViewDelta) -> View:
        """Return the view that an entry with this config and delta would lead to."""
        if self._folded is None or self._folded[:2] != (config, delta):
            self._folded = (config, delta, next_view(self.view, config, delta))
        return self._folded[2]

    def commit(self, entry: Entry) -> None:
        """Append a chosen entry."""
        assert self.is_next(entry.index, entry.previous), "entries form a chain"
        self._remember_job(entry)
        self.view = self.view_after(entry.config, entry.delta)
        self._folded = None
        self.entry = entry
        self.entry_id = entry.id()
        self._recent.append(entry)

    def adopt(self, entry: Entry, view: View) -> None:
        """Jump to a later entry of the same lineage, together with the view after it."""
        assert entry.index > self.index, "catching up never lowers the index"
        self._remember_job(entry)
        self.entry = entry
        self.entry_id = entry.id()
        self.view = view
        self._folded = None
        self._recent.clear()
        self._recent.append(entry)

    def after(self, index: EntryIndex) -> tuple[Entry, ...]:
        """Return the committed entries after ``index``, empty if they are not all kept."""
        kept = tuple(entry for entry in self._recent if entry.index > index)
        complete = bool(kept) and kept[0].index == index + 1
        return kept if complete else ()

    def _remember_job(self, entry: Entry) -> None:
        """Keep the newest job for people if ``entry`` replaces it by another."""
        before = self.entry.job
        if entry.job != before:
            self.job_changed_at = entry.index
        if before is not None and (entry.job is None or entry.job.spec.id != before.spec.id):
            self._ended.append(before)
