"""Redeeming invitations against a real listener, which answers as a daemon's door does."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest

from greedw_daemon.cluster import join as join
from greedw_daemon.cluster.invites import InviteBook
from greedw_daemon.cluster.join import names_cluster, read_token, redeem
from greedw_daemon.cluster.setup import found_cluster, join_cluster
from greedw_daemon.cluster.state_dir import StateDir
from greedw_daemon.network.handshake import HandshakeStream
from greedw_daemon.network.listener import Listener
from greedw_p2p.config import Address, Member
from greedw_p2p.errors import DaemonError
from greedw_p2p.ids import ClusterId, Incarnation, LineageId, NodeId
from greedw_p2p.invitation import Invitation, format_token, hash_of_cluster
from greedw_p2p.wire.codec import decode
from greedw_p2p.wire.messages import Hello, JoinAccepted, JoinRequest, RefusalCode, Refused

CLUSTER: Final = ClusterId("c" * 32)
LINEAGE: Final = LineageId("d" * 32)
NEWCOMER: Final = Member(NodeId("b" * 32), Incarnation(1), "newcomer", Address("127.0.0.1", 7000))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "RETRY_S", 0.01)


class Inviter:
    """A member that answers newcomers."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDir.open(directory)
        self.book = InviteBook(self.state, random_bytes=os.urandom)
        self.listener = Listener(self)
        self.refusal: Refused | None = None
        self.answers_for = CLUSTER
        self.asked = 0

    async def __aenter__(self) -> Self:
        address = await self.listener.open("127.0.0.1", 0)
        self.member = Member(self.state.identity.node, Incarnation(1), "inviter", address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()
        self.state.close()

    def invite(self, *others: Address, uses: int = 1) -> Invitation:
        token_id, secret = self.book.make(ttl_s=60, uses=uses, now_s=time.time())
        addresses = (*others, self.member.address)
        return Invitation(hash_of_cluster(CLUSTER), token_id, secret, addresses)

    def refuse(self, hello: Hello) -> Refused | None:
        self.asked += 1
        if self.refusal is None and not names_cluster(hello, CLUSTER):
            return Refused(RefusalCode.CLUSTER, "another cluster")
        return self.refusal

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        frame = await stream.read()
        request = decode(frame.kind, frame.header, (JoinRequest,))
        refused = self.book.redeem(request, hello.member.node, time.time())
        accepted = JoinAccepted(self.answers_for, "lab", LINEAGE, (self.member, hello.member))
        await stream.finish(refused or accepted)


def run(directory: Path, scene: Callable[[Inviter], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), Inviter(directory) as inviter:
            await scene(inviter)

    asyncio.run(main())


async def raises(redeeming: Awaitable[Any]) -> DaemonError:
    with pytest.raises(DaemonError) as caught:
        await redeeming
    return caught.value


def test_invitation_that_holds_gives_cluster_lineage_and_members(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        accepted = await redeem(inviter.invite(), NEWCOMER)
        assert (accepted.cluster, accepted.lineage) == (CLUSTER, LINEAGE)
        assert inviter.member in accepted.members
        assert inviter.asked == 1

    run(tmp_path, scene)


def test_checking_an_invitation_leaves_it_for_another(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        invitation = inviter.invite()
        other = Member(NodeId("e" * 32), Incarnation(1), "other", NEWCOMER.address)
        await redeem(invitation, NEWCOMER, check_only=True)
        await redeem(invitation, other)
        error = await raises(redeem(invitation, NEWCOMER))
        assert "used up" in str(error)

    run(tmp_path, scene)


def test_refused_invitation_is_tried_once_and_exits_with_5(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        unknown = Invitation(
            hash_of_cluster(CLUSTER), bytes(8), bytes(16), (inviter.member.address,)
        )
        error = await raises(redeem(unknown, NEWCOMER))
        assert error.exit_code == 5
        assert f"{inviter.member.address} refused the token" in str(error)
        assert "greedw invite" in error.hint
        assert inviter.asked == 1

    run(tmp_path, scene)


def test_inviter_of_another_version_exits_with_6(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        inviter.refusal = Refused(RefusalCode.VERSION, "it speaks version 2")
        error = await raises(redeem(inviter.invite(), NEWCOMER))
        assert error.exit_code == 6
        assert "version 2" in str(error)

    run(tmp_path, scene)


def test_busy_inviter_is_asked_again(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        inviter.refusal = Refused(RefusalCode.BUSY, "too many wrong invitations")
        error = await raises(redeem(inviter.invite(), NEWCOMER))
        assert (error.exit_code, inviter.asked) == (4, join.TRIES)
        assert "too many wrong invitations" in str(error)

    run(tmp_path, scene)


def test_second_address_is_used_when_the_first_does_not_answer(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        accepted = await redeem(inviter.invite(Address("127.0.0.1", 1)), NEWCOMER)
        assert accepted.cluster == CLUSTER

    run(tmp_path, scene)


def test_addresses_that_do_not_answer_are_each_named_with_the_reason(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        invitation = inviter.invite(Address("127.0.0.1", 1))
        await inviter.listener.close()
        error = await raises(redeem(invitation, NEWCOMER))
        assert error.exit_code == 4
        assert "127.0.0.1:1: connection refused" in str(error)
        assert f"{inviter.member.address}: connection refused" in str(error)
        assert "firewall" in error.hint

    run(tmp_path, scene)


def test_answer_for_another_cluster_than_the_tokens_is_refused(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        inviter.answers_for = ClusterId("f" * 32)
        error = await raises(redeem(inviter.invite(), NEWCOMER))
        assert error.exit_code == 5
        assert "another cluster" in str(error)

    run(tmp_path, scene)


def test_node_of_another_cluster_at_the_address_refuses(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        invitation = inviter.invite()
        other = Invitation(bytes(8), invitation.token_id, invitation.secret, invitation.addresses)
        error = await raises(redeem(other, NEWCOMER))
        assert error.exit_code == 5

    run(tmp_path, scene)


def test_joining_writes_the_cluster_and_joining_again_is_refused(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        token = format_token(inviter.invite(uses=2))
        with StateDir.open(tmp_path / "newcomer", name="newcomer") as directory:
            made = await join_cluster(directory, token, NEWCOMER.address)
            assert (made["cluster"], made["cluster_name"]) == (CLUSTER, "lab")
            record = directory.cluster()
            assert record is not None
            # The node is no contact of itself, though the inviter named it.
            assert record.contacts == (inviter.member,)
            assert not record.founder
            error = await raises(join_cluster(directory, token, NEWCOMER.address))
            assert (error.exit_code, inviter.asked) == (6, 1)
            assert "belongs to that cluster, lab, already" in str(error)

    run(tmp_path / "inviter", scene)


def test_member_of_another_cluster_cannot_join(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        with StateDir.open(tmp_path / "newcomer") as directory:
            found_cluster(directory, "mine")
            token = format_token(inviter.invite())
            error = await raises(join_cluster(directory, token, NEWCOMER.address))
            assert (error.exit_code, inviter.asked) == (6, 0)
            assert "belongs to the cluster mine already" in str(error)

    run(tmp_path / "inviter", scene)


def test_failed_join_leaves_the_directory_free(tmp_path: Path) -> None:
    async def scene(inviter: Inviter) -> None:
        invitation = inviter.invite()
        await inviter.listener.close()
        with StateDir.open(tmp_path / "newcomer") as directory:
            await raises(join_cluster(directory, format_token(invitation), NEWCOMER.address))
            assert directory.cluster() is None
            # The life that spoke is used up.
            assert directory.next_incarnation() == 2

    run(tmp_path / "inviter", scene)


@pytest.mark.parametrize(("text", "code"), [("gw1-qqqq", 5), ("gw9-qqqq", 6), ("hello", 5)])
def test_token_that_cannot_be_read_has_its_exit_code(text: str, code: int) -> None:
    with pytest.raises(DaemonError) as caught:
        read_token(text)
    assert caught.value.exit_code == code
