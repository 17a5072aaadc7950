import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from greedw_daemon.network import content as content
from greedw_daemon.network.content import PIECE_BYTES, ContentClient, ContentServer
from greedw_p2p.errors import PeerError
from greedw_p2p.ids import Incarnation, MemberId, NodeId
from greedw_p2p.wire.messages import Bytes, ContentMessage, GetBytes

HOLDER = MemberId(NodeId("a" * 32), Incarnation(1))
FETCHER = MemberId(NodeId("b" * 32), Incarnation(1))
DIGEST = b"d" * 16
CONTENT = bytes(range(256)) * 1025  # five pieces, the last one short


class Wire:
    """Carries messages between a server and a client, and may lose some."""

    def __init__(self, *, lose: Callable[[ContentMessage], bool] = lambda _: False) -> None:
        self.stored: dict[bytes, memoryview] = {DIGEST: memoryview(CONTENT)}
        self.requests: list[int] = []
        self.asked_at_once = 0
        self.answers = 0
        self.lose = lose
        self.server = ContentServer(self._to_client, self.stored.get)
        self.client = ContentClient(self._to_server)

    async def fetch(self, size: int = len(CONTENT)) -> bytes:
        target = bytearray(size)
        await self.client.fetch(HOLDER, DIGEST, memoryview(target))
        return bytes(target)

    def _to_server(self, to: MemberId, message: ContentMessage, body: bytes) -> None:
        assert (to, body) == (HOLDER, b"")
        assert isinstance(message, GetBytes)
        self.requests.append(message.offset)
        self.asked_at_once = max(self.asked_at_once, len(self.requests) - self.answers)
        if not self.lose(message):
            asyncio.get_running_loop().call_soon(self.server.requested, FETCHER, message)

    def _to_client(self, to: MemberId, message: ContentMessage, body: bytes) -> None:
        assert to == FETCHER
        assert isinstance(message, Bytes)
        self.answers += 1
        if not self.lose(message):
            asyncio.get_running_loop().call_soon(self.client.arrived, HOLDER, message, body)


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PIECE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(content, "RETRY_S", 0.01)


def test_content_arrives_whole_with_few_requests_under_way() -> None:
    async def scene() -> None:
        wire = Wire()
        assert await wire.fetch() == CONTENT
        assert sorted(wire.requests) == list(range(0, len(CONTENT), PIECE_BYTES))
        assert wire.asked_at_once <= content.WINDOW_PIECES
        wire.server.close()

    run(scene())


def test_lost_requests_and_answers_are_asked_for_again() -> None:
    async def scene() -> None:
        lost: set[tuple[str, int]] = set()

        def lose_each_once(message: ContentMessage) -> bool:
            key = (type(message).__name__, message.offset)
            first = key not in lost
            lost.add(key)
            return first

        wire = Wire(lose=lose_each_once)
        assert await wire.fetch() == CONTENT
        assert len(lost) == 10
        wire.server.close()

    run(scene())


def test_holder_that_never_answers_is_given_up() -> None:
    async def scene() -> None:
        wire = Wire(lose=lambda _: True)
        with pytest.raises(PeerError, match="did not answer"):
            await wire.fetch()

    run(scene())


def test_holder_without_the_content_is_asked_a_few_times() -> None:
    async def scene() -> None:
        wire = Wire()
        wire.stored.clear()
        with pytest.raises(PeerError, match="it does not have it, 5 tries"):
            await wire.fetch()
        # It may have it a moment later.
        fetching = asyncio.ensure_future(wire.fetch())
        await asyncio.sleep(0)
        wire.stored[DIGEST] = memoryview(CONTENT)
        assert await fetching == CONTENT
        wire.server.close()

    run(scene())


def test_content_of_another_size_than_expected_is_refused() -> None:
    async def scene() -> None:
        wire = Wire()
        with pytest.raises(PeerError, match=f"has {len(CONTENT)} bytes there, 1000 were expected"):
            await wire.fetch(1000)
        wire.server.close()

    run(scene())


def test_loss_of_the_holder_ends_the_fetch_with_the_reason() -> None:
    async def scene() -> None:
        wire = Wire(lose=lambda _: True)
        fetching = asyncio.ensure_future(wire.fetch())
        await asyncio.sleep(0)
        wire.client.peer_lost(FETCHER, "somebody else")
        wire.client.peer_lost(HOLDER, "it closed the connection")
        with pytest.raises(PeerError, match="it closed the connection"):
            await fetching

    run(scene())


def test_state_that_changes_during_a_fetch_is_served_as_it_was() -> None:
    async def scene() -> None:
        wire = Wire()
        changing = bytearray(CONTENT)
        wire.stored[DIGEST] = memoryview(changing)

        def replace_after_first(_: ContentMessage) -> bool:
            if wire.answers == 1:
                changing[:] = bytes(len(changing))
                wire.stored.clear()
            return False

        wire.lose = replace_after_first
        assert await wire.fetch() == CONTENT
        wire.server.close()

    run(scene())


def test_copies_are_few_and_go_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "COPY_IDLE_S", 0.01)

    async def scene() -> None:
        wire = Wire()
        for number in range(5):
            digest = bytes((number,)) * 16
            wire.stored[digest] = memoryview(CONTENT)
            wire.server.requested(FETCHER, GetBytes(digest, 0, 100))
            assert wire.server.copies <= content.COPIES_MAX
        async with asyncio.timeout(5):
            while wire.server.copies:  # noqa: ASYNC110 - it is no event of ours
                await asyncio.sleep(0.005)

    run(scene())


def test_piece_that_nobody_asked_for_is_dropped() -> None:
    async def scene() -> None:
        wire = Wire()
        wire.client.arrived(HOLDER, Bytes(DIGEST, 0, 5), b"bytes")
        fetching = asyncio.ensure_future(wire.fetch())
        await asyncio.sleep(0)
        wire.client.arrived(FETCHER, Bytes(DIGEST, 0, len(CONTENT)), bytes(PIECE_BYTES))
        wire.client.arrived(HOLDER, Bytes(DIGEST, 7, len(CONTENT)), bytes(PIECE_BYTES))
        assert await fetching == CONTENT
        wire.server.close()

    run(scene())


def test_request_beyond_the_end_is_answered_with_nothing() -> None:
    async def scene() -> None:
        sent: list[tuple[ContentMessage, bytes]] = []
        server = ContentServer(
            lambda _, message, body: sent.append((message, body)), lambda _: memoryview(b"abc")
        )
        server.requested(FETCHER, GetBytes(DIGEST, 3, 10))
        server.requested(FETCHER, GetBytes(DIGEST, 1, 65_536))
        assert sent == [(Bytes(DIGEST, 3, 0), b""), (Bytes(DIGEST, 1, 3), b"bc")]
        server.close()

    run(scene())
