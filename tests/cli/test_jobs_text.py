from collections.abc import Callable

import pytest

from greedw_cli import exits
from greedw_cli.job_choice import choose_job
from greedw_cli.job_table import job_lines, replica
from greedw_p2p.errors import DaemonError
from greedw_p2p.node.status import JobStatus

Make = Callable[..., JobStatus]
DIGEST = "7f3a9c0e5b11d2a4"


def test_table_fits_80_columns_with_every_id_whole(make_job: Make) -> None:
    longest = make_job(
        id="mnist-cnn-3f09ac",
        state="preparing",
        round=999_999,
        rounds=999_999,
        loss=1234.5,
        accuracy=1.0,
        digests={"attic": DIGEST},
        reason="lab-1 has failed (no word for 3 s); the job waits for it, because " * 3,
    )
    lines = job_lines([make_job(), longest])
    assert [line.split()[0] for line in lines[:3]] == ["job", "mnist-2nn-3f09ac", longest.id]
    assert max(len(line) for line in lines[:3]) <= 80
    assert lines[3] == f"  {longest.reason}"


@pytest.mark.parametrize(
    ("digests", "shown"),
    [
        ({}, "-"),
        ({"a": DIGEST}, DIGEST[:10]),
        ({"a": DIGEST, "b": DIGEST}, DIGEST[:10]),
        ({"a": DIGEST, "b": DIGEST[::-1]}, "differ!"),
        ({"a": DIGEST, "b": DIGEST[:-1] + "5"}, "differ!"),
    ],
)
def test_replica_is_one_digest_only_where_all_agree(
    digests: dict[str, str], shown: str, make_job: Make
) -> None:
    assert replica(make_job(digests=digests)) == shown
    assert job_lines([make_job(digests=digests)])[1].endswith(shown)


def test_job_is_chosen_by_any_beginning_that_only_one_id_has(make_job: Make) -> None:
    jobs = [make_job(id=name) for name in ("a-1", "a-12", "b-2")]
    assert choose_job(jobs, "b").id == "b-2"
    assert choose_job(jobs, "a-12").id == "a-12"
    assert choose_job(jobs, "a-1").id == "a-1"  # it is an id, though another begins with it
    with pytest.raises(DaemonError) as ambiguous:
        choose_job(jobs, "a")
    assert ambiguous.value.exit_code == exits.WRONG_USAGE
    assert "a-1, a-12" in ambiguous.value.hint
    for wrong in ("c", "", "2"):
        with pytest.raises(DaemonError, match="no job"):
            choose_job(jobs, wrong)


def test_job_without_a_name_is_the_one_that_has_not_ended(make_job: Make) -> None:
    ended = [make_job(id=state, state=state) for state in ("finished", "stopped", "failed")]
    with pytest.raises(DaemonError, match="no job is running"):
        choose_job(ended, None)
    assert choose_job([*ended, make_job(id="b", state="paused")], None).id == "b"
    with pytest.raises(DaemonError, match="more than one"):
        choose_job([make_job(id="a"), make_job(id="b", state="preparing")], None)
