"""What a user may say about a job, checked; and the spec that follows when the data is known."""

from typing import Annotated, Any, Final, Self

import msgspec

from greedw_p2p.errors import DaemonError
from greedw_p2p.ids import JobId
from greedw_p2p.jobs.job import DataSetFacts
from greedw_p2p.jobs.registry import DEFAULTS, job_kinds
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.limits import TEXT_CHARS_MAX

WRONG_USAGE: Final = 2


class JobOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as a user asks for it. What is None takes the kind's default."""

    kind: str
    data_dir: Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)] = ""
    epochs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    batch: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    learning_rate: Annotated[float, msgspec.Meta(gt=0, lt=1e6)] | None = None
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] | None = None

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> Self:
        """Check what a command sent.

        Raises:
            DaemonError: a value is out of range, or there is no such kind of job (exit 2).
        """
        try:
            order = msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise DaemonError(f"train: {error}", exit_code=WRONG_USAGE) from error
        if order.kind not in DEFAULTS:
            raise DaemonError(
                f"there is no job called {order.kind!r}",
                hint=f"there are: {', '.join(job_kinds())}",
                exit_code=WRONG_USAGE,
            )
        return order

    def spec(self, job: JobId, facts: DataSetFacts) -> JobSpec:
        """Return the complete spec of the job on a data set."""
        defaults = DEFAULTS[self.kind]
        return JobSpec(
            id=job,
            kind=self.kind,
            data_dir=self.data_dir,
            data_digest=facts.digest,
            samples=facts.samples,
            held_out=facts.held_out,
            epochs=defaults.epochs if self.epochs is None else self.epochs,
            batch=defaults.batch if self.batch is None else self.batch,
            learning_rate=(
                defaults.learning_rate if self.learning_rate is None else self.learning_rate
            ),
            momentum=defaults.momentum if self.momentum is None else self.momentum,
            seed=defaults.seed if self.seed is None else self.seed,
        )
