import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from greedw_p2p.errors import DataSetError, JobError
from greedw_p2p.ids import ContentDigest
from greedw_p2p.jobs.registry import (
    DEFAULTS,
    MNIST_2NN,
    job_kinds,
    layout_of,
    open_data,
    open_job,
)
from greedw_p2p.jobs.spec import JobSpec

from .conftest import MnistFolder

MakeSpec = Callable[..., JobSpec]


def test_every_kind_has_defaults() -> None:
    assert job_kinds() == (MNIST_2NN,) == tuple(DEFAULTS)


def test_an_unknown_kind_is_refused_by_name_with_what_there_is(make_spec: MakeSpec) -> None:
    spec = msgspec.structs.replace(make_spec(), kind="mnist-3nn")
    calls: list[Callable[[], Any]] = [
        lambda: layout_of(spec),
        lambda: open_job(spec),
        lambda: open_data("mnist-3nn", ""),
    ]
    for call in calls:
        with pytest.raises(JobError, match=r"'mnist-3nn'.*mnist-2nn"):
            call()


def test_the_layout_is_that_of_the_job_that_is_opened(make_spec: MakeSpec) -> None:
    spec = make_spec()
    layout = layout_of(spec)
    assert layout == open_job(spec).layout
    assert layout.state_bytes == 2 * layout.gradient.nbytes
    assert layout.gradient.elements >= 199_210


def test_the_layout_needs_no_data(make_spec: MakeSpec) -> None:
    spec = msgspec.structs.replace(make_spec(), data_dir="/nowhere")
    assert layout_of(spec) == layout_of(make_spec())


def test_the_facts_of_a_folder_are_what_a_job_on_it_needs(
    make_folder: Callable[..., MnistFolder], make_spec: MakeSpec
) -> None:
    folder = str(make_folder().path)
    facts = open_data(MNIST_2NN, folder)
    assert (facts.samples, facts.held_out) == (7, 3)
    job = open_job(make_spec(data_dir=folder))
    assert job.layout == layout_of(make_spec())


@pytest.mark.parametrize(
    "change", [{"data_digest": ContentDigest(b"x" * 16)}, {"samples": 7999}, {"held_out": 1}]
)
def test_other_data_than_the_jobs_is_refused_with_both_digests(
    make_spec: MakeSpec, change: dict[str, Any]
) -> None:
    spec = msgspec.structs.replace(make_spec(), **change)
    with pytest.raises(DataSetError) as error:
        open_job(spec)
    assert make_spec().data_digest.hex() in str(error.value)
    assert spec.data_digest.hex() in str(error.value)
    assert "embedded" in str(error.value)
    assert error.value.hint


def test_other_data_in_a_folder_is_refused_by_the_folders_name(
    make_folder: Callable[..., MnistFolder], make_spec: MakeSpec
) -> None:
    folder = make_folder()
    spec = make_spec(data_dir=str(folder.path))
    folder.arrays[0][0, 0, 0] ^= 1
    folder.write()
    with pytest.raises(DataSetError, match=str(folder.path)):
        open_job(spec)


def test_importing_the_registry_imports_no_compiler() -> None:
    code = "import sys, greedw_p2p.jobs.registry; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
