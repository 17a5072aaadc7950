import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from greedw_daemon.cluster import invites as invites
from greedw_daemon.cluster.invites import InviteBook
from greedw_daemon.cluster.state_dir import INVITES, StateDir
from greedw_p2p.errors import DaemonError
from greedw_p2p.ids import NodeId
from greedw_p2p.wire.messages import JoinRequest, RefusalCode, Refused

NOW = 1_000_000.0
A, B, C = (NodeId(f"{number:032x}") for number in (1, 2, 3))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDir]:
    with StateDir.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def book(directory: StateDir) -> InviteBook:
    return InviteBook(directory, random_bytes=os.urandom)


def make(book: InviteBook, *, ttl_s: int = 60, uses: int = 1) -> JoinRequest:
    token_id, secret = book.make(ttl_s=ttl_s, uses=uses, now_s=NOW)
    return JoinRequest(token_id, secret, check_only=False)


def reason(refused: Refused | None) -> str:
    assert refused is not None
    return refused.reason


def test_invitation_holds_for_as_many_nodes_as_said(book: InviteBook) -> None:
    request = make(book, uses=2)
    assert book.redeem(request, A, NOW) is None
    assert book.redeem(request, B, NOW) is None
    assert "used up" in reason(book.redeem(request, C, NOW))


def test_node_may_redeem_again_because_an_answer_may_be_lost(book: InviteBook) -> None:
    request = make(book)
    assert book.redeem(request, A, NOW) is None
    assert book.redeem(request, A, NOW) is None
    assert "used up" in reason(book.redeem(request, B, NOW))


def test_checking_uses_nothing_up(book: InviteBook) -> None:
    request = make(book)
    check = JoinRequest(request.token_id, request.secret, check_only=True)
    assert book.redeem(check, A, NOW) is None
    assert book.redeem(check, B, NOW) is None
    assert book.redeem(request, C, NOW) is None
    assert "used up" in reason(book.redeem(check, B, NOW))


def test_invitation_expires(book: InviteBook) -> None:
    request = make(book, ttl_s=60)
    assert "expired" in reason(book.redeem(request, A, NOW + 60))
    assert book.redeem(request, A, NOW + 59) is None


def test_uses_and_expiry_survive_a_restart(book: InviteBook, directory: StateDir) -> None:
    request = make(book, uses=2)
    assert book.redeem(request, A, NOW) is None
    later = InviteBook(directory, random_bytes=os.urandom)
    assert later.redeem(request, B, NOW) is None
    assert "used up" in reason(later.redeem(request, C, NOW))


def test_no_secret_is_kept(book: InviteBook, directory: StateDir) -> None:
    request = make(book)
    kept = (directory.path / INVITES).read_text()
    assert request.token_id.hex() in kept
    assert request.secret.hex() not in kept


def test_wrong_secret_is_refused_and_voids_the_invitation_after_a_few(book: InviteBook) -> None:
    request = make(book)
    wrong = JoinRequest(request.token_id, bytes(16), check_only=False)
    for _ in range(invites.WRONG_GUESSES_MAX - 1):
        assert "secret is wrong" in reason(book.redeem(wrong, A, NOW))
    assert book.redeem(request, A, NOW) is None
    assert "secret is wrong" in reason(book.redeem(wrong, A, NOW))
    assert "not known" in reason(book.redeem(request, A, NOW))


def test_many_unknown_invitations_stop_all_answers_for_a_while(book: InviteBook) -> None:
    request = make(book, ttl_s=3600)
    unknown = JoinRequest(bytes(8), bytes(16), check_only=False)
    for _ in range(invites.UNKNOWN_MAX):
        refused = book.redeem(unknown, A, NOW)
        assert refused is not None
        assert refused.code is RefusalCode.TOKEN
    refused = book.redeem(request, A, NOW)
    assert refused is not None
    assert refused.code is RefusalCode.BUSY
    assert book.redeem(request, A, NOW + invites.UNKNOWN_WINDOW_S) is None


def test_number_of_open_invitations_is_bounded_and_expired_ones_make_room(
    book: InviteBook,
) -> None:
    for _ in range(invites.INVITES_MAX):
        make(book)
    with pytest.raises(DaemonError, match="are open already"):
        make(book)
    book.make(ttl_s=60, uses=1, now_s=NOW + 61)


@pytest.mark.parametrize(("ttl_s", "uses"), [(0, 1), (invites.TTL_S_MAX + 1, 1), (60, 0)])
def test_invitation_out_of_range_is_refused(book: InviteBook, ttl_s: int, uses: int) -> None:
    with pytest.raises(DaemonError, match="an invitation"):
        book.make(ttl_s=ttl_s, uses=uses, now_s=NOW)
