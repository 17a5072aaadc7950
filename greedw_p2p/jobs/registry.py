"""Which kinds of jobs there are, and how each is opened.

Importing this costs little: models, kernels and numba are imported when a job needs them.
"""

from dataclasses import dataclass
from typing import Final

from greedw_p2p.data.mnist import DigitSet, load_digits
from greedw_p2p.errors import DataSetError, JobError
from greedw_p2p.jobs.job import DataSetFacts, Job, JobLayout
from greedw_p2p.jobs.spec import JobSpec

MNIST_2NN: Final = "mnist-2nn"


@dataclass(frozen=True, slots=True)
class TrainingDefaults:
    """What a training job uses where the user says nothing."""

    epochs: int
    batch: int
    learning_rate: float
    momentum: float
    seed: int


DEFAULTS: Final = {
    MNIST_2NN: TrainingDefaults(epochs=10, batch=256, learning_rate=0.15, momentum=0.9, seed=1)
}
"""By kind of job."""


def job_kinds() -> tuple[str, ...]:
    """Return the names of all kinds, sorted."""
    return tuple(sorted(DEFAULTS))


def layout_of(spec: JobSpec) -> JobLayout:
    """Return the memory that a job needs, without reading its data.

    Raises:
        JobError: if this version of greedw has no such kind of job.
    """
    _check_kind(spec.kind)
    # Here, not above: the command line imports this module and must not wait for numba.
    from greedw_p2p.jobs.training import training_layout  # noqa: PLC0415
    from greedw_p2p.models.mnist_2nn import BUCKETS  # noqa: PLC0415

    return training_layout(BUCKETS)


def open_data(kind: str, data_dir: str) -> DataSetFacts:
    """Read the data set that a job of this kind would use; empty ``data_dir``: the embedded one.

    Raises:
        JobError: if this version of greedw has no such kind of job.
        DataSetError: if the data is missing, truncated or malformed, naming folder or file.
    """
    _check_kind(kind)
    return _facts_of(load_digits(data_dir))


def open_job(spec: JobSpec) -> Job:
    """Load a job's data and allocate its scratch memory.

    Raises:
        JobError: if this version of greedw has no such kind of job.
        DataSetError: if the data cannot be read, or is not the set that the spec names.
    """
    _check_kind(spec.kind)
    from greedw_p2p.jobs.training import BLOCK_SAMPLES, TrainingJob  # noqa: PLC0415
    from greedw_p2p.models.mnist_2nn import Mnist2NN  # noqa: PLC0415

    digits = load_digits(spec.data_dir)
    _check_data(spec, _facts_of(digits))
    return TrainingJob(spec, Mnist2NN(BLOCK_SAMPLES), digits.train, digits.held_out)


def _check_kind(kind: str) -> None:
    if kind not in DEFAULTS:
        raise JobError(f"no job is called {kind!r}; there are: {', '.join(job_kinds())}")


def _check_data(spec: JobSpec, found: DataSetFacts) -> None:
    wanted = DataSetFacts(spec.data_digest, spec.samples, spec.held_out)
    if found == wanted:
        return
    place = f"the data in {spec.data_dir}" if spec.data_dir else "the embedded data set"
    raise DataSetError(
        f"{place} is not the job's: here {_described(found)}, the job needs {_described(wanted)}",
        hint="put the same data files on every node, at the same path, or start the job again",
    )


def _facts_of(digits: DigitSet) -> DataSetFacts:
    return DataSetFacts(digits.digest, len(digits.train), len(digits.held_out))


def _described(facts: DataSetFacts) -> str:
    return f"{facts.digest.hex()} ({facts.samples} samples, {facts.held_out} held out)"
