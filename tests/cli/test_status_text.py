from typing import Any

import msgspec
import pytest

from greedw_cli.members import admission_lines
from greedw_cli.status import describe, verdict_of
from greedw_p2p.node.status import (
    EdgeStatus,
    JobStatus,
    MemberStatus,
    NodeState,
    NodeStatus,
    TopologyStatus,
)


def member(name: str, **changes: Any) -> MemberStatus:
    usual = MemberStatus(
        id=name,  # type: ignore[arg-type]
        name=name,
        incarnation=1,
        address=f"192.0.2.1:{len(name)}",
        state="alive",
        heard_ms=100,
        is_leader=name == "attic",
        is_self=name == "attic",
        committed=8,
        share=64,
        compute_ms=10.0,
        wait_ms=1.0,
        transfer_ms=3.0,
        sent_bytes=1000,
    )
    return msgspec.structs.replace(usual, **changes)


def job(**changes: Any) -> JobStatus:
    usual = JobStatus(
        id="job-1",  # type: ignore[arg-type]
        kind="mnist-2nn",
        state="running",
        round=62,
        rounds=124,
        epochs=4,
        batch=256,
        samples=8000,
        held_out=2000,
        loss=0.043,
        accuracy=0.9412,
        accuracy_round=31,
        digests={},
        reason="",
    )
    return msgspec.structs.replace(usual, **changes)


def node(**changes: Any) -> NodeStatus:
    usual = NodeStatus(
        node="attic",  # type: ignore[arg-type]
        name="attic",
        incarnation=1,
        address="192.0.2.14:7946",
        cluster="lab",
        lineage="0" * 32,
        state=NodeState.MEMBER,
        committed=8,
        leader="attic",
        quorum=2,
        hears_quorum=True,
        pause="",
        members=(member("attic"), member("pi-1"), member("pi-2", share=9, compute_ms=13.0)),
        jobs=(),
        topology=TopologyStatus(
            entry=9,
            root="attic",
            edges=(
                EdgeStatus("pi-1", "attic", 940.0, 940.0, 0.2),
                EdgeStatus("pi-2", "attic", 46.0, 46.0, 0.4),
            ),
            shares={},
            predicted_ms=2.8,
            bound_ms=2.5,
            links_known=6,
            links_wanted=6,
        ),
    )
    return msgspec.structs.replace(usual, **changes)


def text_of(status: NodeStatus, rounds_per_second: float | None = None) -> dict[str, str]:
    return dict(describe(status, rounds_per_second))


def test_running_job_shows_progress_time_left_balance_and_tree() -> None:
    lines = text_of(node(jobs=(job(),)), 6.2)
    assert lines["healthy"] == ("3 of 3 members, quorum 2, round 62 of 124 (50 %), 0:00:10 left")
    assert lines["job"] == ("mnist-2nn (job-1) running, loss 0.0430, accuracy 94.1 % (round 31)")
    assert "92 % busy" not in lines["balance"]
    assert "pi-2 (13.0 ms, share 9 of 256)" in lines["balance"]
    assert lines["tree"].startswith("attic > pi-1, pi-2")


def test_time_left_is_left_out_where_no_pace_was_seen() -> None:
    assert "left" not in text_of(node(jobs=(job(),)))["healthy"]


def test_paused_job_says_why_and_whom_to_check() -> None:
    reason = "pi-2 died: link attic-pi-2, reduce: waiting for chunk 3 of pi-2"
    members = (member("attic"), member("pi-1"), member("pi-2", state="failed", heard_ms=3000))
    lines = text_of(node(jobs=(job(state="paused", reason=reason),), members=members))
    assert reason in lines["paused"]
    assert "pi-2 at 192.0.2.1:4 (failed, last heard 3.0 s ago)" in lines["missing"]
    assert "pi-2" in lines["next"]


def test_paused_job_that_misses_members_may_go_on_without_them() -> None:
    members = (member("attic"), member("pi-1"), member("pi-2", state="failed", heard_ms=3000))
    paused = text_of(node(jobs=(job(state="paused", reason="pi-2 is gone"),), members=members))
    assert "remove it: greedw evict pi-2\n" in paused["next"]
    assert "remove it: greedw evict pi-2\n" in text_of(node(members=members))["next"]
    frozen = text_of(node(jobs=(job(state="paused"),), members=members, hears_quorum=False))
    assert "greedw evict" not in frozen["next"]


def test_restarted_member_is_not_waited_for_but_evicted() -> None:
    members = (member("attic"), member("pi-1"), member("pi-2", state="restarted"))
    lines = text_of(node(jobs=(job(state="paused", reason="pi-2"),), members=members))
    assert lines["next"].startswith("If it has ended or restarted, remove it: greedw evict pi-2")


def test_cluster_that_cannot_go_on_says_so_and_gives_no_other_advice() -> None:
    members = (member("attic", state="restarted"), member("pi-1"))
    reason = "no quorum; on each machine: stop greedwd"
    lines = text_of(node(members=members, hears_quorum=False, pause=reason, recoverable=False))
    assert lines["frozen"] == f"this cluster cannot go on\n{reason}"
    assert "next" not in lines


def test_members_are_named_with_the_one_that_leads() -> None:
    lines = text_of(node(members=(member("attic"), member("pi-1"))))
    assert lines["members"] == "attic (leads), pi-1"


def test_newcomer_is_told_in_full_what_it_waits_for_and_not_to_train() -> None:
    reason = "waiting to be admitted: that happens when job mnist-2nn-3f09ac has ended"
    lines = text_of(node(state=NodeState.JOINING, pause=reason, jobs=(job(),)))
    assert lines["joining"] == f'not yet a member of "lab"\n{reason}'
    assert "next" not in lines


def test_join_says_whether_the_machine_is_a_member_yet() -> None:
    assert admission_lines("lab", node())[0] == 'This machine is now a member of "lab" (3 members).'
    reason = "waiting to be admitted: that happens when job mnist-2nn-3f09ac has ended"
    first, _ = admission_lines("lab", node(state=NodeState.JOINING, pause=reason))
    assert first == (
        'This machine has been accepted by "lab"; '
        "it becomes a member when job mnist-2nn-3f09ac has ended."
    )
    reason = "waiting to be admitted; nobody answers yet (known: a at 192.0.2.1:7946)"
    first, _ = admission_lines("lab", node(state=NodeState.JOINING, pause=reason))
    assert first == f'This machine has been accepted by "lab": {reason}.'


def test_frozen_says_how_many_are_needed() -> None:
    members = (member("attic"), member("pi-1", state="failed"), member("pi-2", state="failed"))
    lines = text_of(node(hears_quorum=False, members=members))
    assert lines["frozen"].startswith("1 of 3 members reachable, 2 needed")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "healthy"),
        ({"pause": "pi-1 is silent"}, "paused"),
        ({"state": NodeState.FROZEN}, "frozen"),
        ({"state": NodeState.JOINING}, "joining"),
        ({"state": NodeState.LEAVING}, "leaving"),
        ({"members": (member("attic"), member("pi-1", state="suspected"))}, "degraded"),
        ({"jobs": (job(state="finished"),)}, "healthy"),
    ],
)
def test_verdict_is_one_word(changes: dict[str, Any], verdict: str) -> None:
    assert verdict_of(node(**changes)) == verdict
    assert describe(node(**changes), None)[0][0] == verdict


def test_lone_member_is_told_to_invite() -> None:
    assert "greedw invite" in text_of(node(members=(member("attic"),)))["next"]
