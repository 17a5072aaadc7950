"""What a job is, as the log carries it: the spec, and how far it has come."""

from enum import StrEnum
from typing import Annotated, Self

import msgspec

from greedw_p2p.ids import ContentDigestField, Counter, JobIdField, StateDigestField
from greedw_p2p.limits import TEXT_CHARS_MAX
from greedw_p2p.record import Record

Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]


class JobPhase(StrEnum):
    """Where a job stands in the log."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class JobSpec(Record, frozen=True):
    """Everything that decides a job's result, except the initial state's bytes.

    ``samples`` and ``held_out`` are the sizes of the data set named by ``data_digest``;
    ``data_dir`` is where each node looks for it, empty for the embedded one. ``learning_rate`` and
    ``momentum`` are floats, and no plan depends on them.
    """

    id: JobIdField
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    data_dir: Text
    data_digest: ContentDigestField
    samples: Annotated[int, msgspec.Meta(ge=1, lt=2**40)]
    held_out: Annotated[int, msgspec.Meta(ge=0, lt=2**40)]
    epochs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    batch: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0)]
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    seed: Counter

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds that consume every sample once; the last one may be smaller."""
        return -(-self.samples // self.batch)

    @property
    def rounds(self) -> int:
        """Training rounds of the whole job."""
        return self.epochs * self.rounds_per_epoch

    def batch_range(self, round_number: int) -> tuple[int, int]:
        """Return [start, stop) of the epoch's permutation that a round consumes, whole."""
        start = (round_number % self.rounds_per_epoch) * self.batch
        return start, min(start + self.batch, self.samples)

    def epoch_of(self, round_number: int) -> int:
        """Return the pass over the data, from 0, that a round belongs to."""
        return round_number // self.rounds_per_epoch


class JobState(Record, frozen=True):
    """A job after one entry of the log.

    ``next_round`` counts committed training rounds; ``evaluated`` is the number of rounds after
    which ``accuracy`` was measured. Loss is the mean of the last round's samples before its
    update. Floats here are for people and take part in no plan.
    """

    spec: JobSpec
    phase: JobPhase
    next_round: Counter
    evaluated: Counter
    loss: float | None
    accuracy: float | None
    initial_state: StateDigestField
    reason: Text

    @classmethod
    def started(cls, spec: JobSpec, initial_state: StateDigestField) -> Self:
        """Return the state in which a job enters the log."""
        return cls(spec, JobPhase.RUNNING, 0, 0, None, None, initial_state, "")

    def after_round(self, loss: float) -> "JobState":
        """Return the job after one more training round with this mean loss."""
        done = self.next_round + 1
        finished = done == self.spec.rounds and self.spec.held_out == 0
        phase = JobPhase.FINISHED if finished else self.phase
        return msgspec.structs.replace(self, next_round=done, loss=loss, phase=phase)

    def after_evaluation(self, accuracy: float) -> "JobState":
        """Return the job with its held-out accuracy measured; the last one finishes it."""
        phase = JobPhase.FINISHED if self.next_round == self.spec.rounds else self.phase
        return msgspec.structs.replace(
            self, evaluated=self.next_round, accuracy=accuracy, phase=phase
        )

    def ended(self, phase: JobPhase, reason: str) -> "JobState":
        """Return the job stopped or failed, and why."""
        return msgspec.structs.replace(self, phase=phase, reason=reason)

    @property
    def evaluation_due(self) -> bool:
        """Tell whether the next entry must measure accuracy: after each epoch, once."""
        return (
            self.phase is JobPhase.RUNNING
            and self.spec.held_out > 0
            and self.next_round > self.evaluated
            and self.next_round % self.spec.rounds_per_epoch == 0
        )
