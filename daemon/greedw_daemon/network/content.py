"""Content by digest: states and results, fetched in pieces from a peer over its control connection.

Pieces are small and few are asked for at a time, so a heartbeat never waits long behind them. What
arrives is trusted only after its digest was checked, by whoever asked. A state goes on changing, so
it is served from a copy, made when the first piece is asked for, dropped when nobody asks any more.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from greedw_p2p.errors import PeerError
from greedw_p2p.ids import MemberId, short
from greedw_p2p.limits import CONTROL_BODY_BYTES_MAX
from greedw_p2p.wire.messages import Bytes, ContentMessage, GetBytes

PIECE_BYTES: Final = CONTROL_BODY_BYTES_MAX
WINDOW_PIECES: Final = 4
PIECE_TIMEOUT_S: Final = 2.0
TRIES_MAX: Final = 5
"""Times that a piece is asked for. A holder that has nothing yet is asked again as often."""

RETRY_S: Final = 0.2
COPIES_MAX: Final = 2
"""Copies kept for peers that are fetching: the newest state and the one before."""

COPY_IDLE_S: Final = 10.0

Send = Callable[[MemberId, ContentMessage, bytes], None]
Find = Callable[[bytes], memoryview | None]


class ContentServer:
    """Answers requests for content that this node has."""

    def __init__(self, send: Send, find: Find) -> None:
        self._send = send
        self._find = find
        self._copies: dict[bytes, bytes] = {}
        self._expiries: dict[bytes, asyncio.TimerHandle] = {}

    def requested(self, peer: MemberId, request: GetBytes) -> None:
        """Send the piece that a peer asks for, or say that there is none."""
        content = self._copy_of(request.digest)
        if content is None or request.offset >= len(content):
            self._send(peer, Bytes(request.digest, request.offset, 0), b"")
            return
        size = min(request.size, PIECE_BYTES)
        piece = content[request.offset : request.offset + size]
        self._send(peer, Bytes(request.digest, request.offset, len(content)), piece)

    @property
    def copies(self) -> int:
        """Copies held now."""
        return len(self._copies)

    def close(self) -> None:
        """Drop all copies."""
        for expiry in self._expiries.values():
            expiry.cancel()
        self._expiries.clear()
        self._copies.clear()

    def _copy_of(self, digest: bytes) -> bytes | None:
        content = self._copies.get(digest)
        if content is None:
            found = self._find(digest)
            if found is None:
                return None
            content = bytes(found)
            while len(self._copies) >= COPIES_MAX:
                self._drop(next(iter(self._copies)))
            self._copies[digest] = content
        expiry = self._expiries.pop(digest, None)
        if expiry is not None:
            expiry.cancel()
        loop = asyncio.get_running_loop()
        self._expiries[digest] = loop.call_later(COPY_IDLE_S, self._drop, digest)
        return content

    def _drop(self, digest: bytes) -> None:
        self._copies.pop(digest, None)
        expiry = self._expiries.pop(digest, None)
        if expiry is not None:
            expiry.cancel()


@dataclass(slots=True)
class _Fetch:
    holder: MemberId
    target: memoryview
    pieces: dict[int, asyncio.Future[int]] = field(default_factory=dict[int, "asyncio.Future[int]"])
    """Outstanding requests: offset to the total size that the answer names."""

    lost: str = ""
    """Why the holder is gone, empty while it is not."""


class ContentClient:
    """Fetches content from peers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._fetches: dict[bytes, _Fetch] = {}

    async def fetch(self, holder: MemberId, digest: bytes, target: memoryview) -> None:
        """Fill ``target``, whose size is that of the content; the digest is not checked here.

        Raises:
            PeerError: the holder does not have it, has it in another size, does not answer, or is
                gone.
        """
        if digest in self._fetches:
            raise PeerError(f"content {short(digest)} is being fetched already")
        fetch = _Fetch(holder, target)
        self._fetches[digest] = fetch
        try:
            await self._fetch_all(fetch, digest)
        finally:
            del self._fetches[digest]

    def arrived(self, peer: MemberId, piece: Bytes, body: bytes) -> None:
        """Take in a piece; what nobody waits for is dropped."""
        fetch = self._fetches.get(piece.digest)
        if fetch is None or fetch.holder != peer:
            return
        waiting = fetch.pieces.get(piece.offset)
        if waiting is None or waiting.done():
            return
        if piece.total == 0:
            waiting.set_result(0)
            return
        expected = min(PIECE_BYTES, len(fetch.target) - piece.offset)
        if piece.total != len(fetch.target) or len(body) != expected:
            waiting.set_exception(
                PeerError(
                    f"the content {short(piece.digest)} has {piece.total} bytes there, "
                    f"{len(fetch.target)} were expected"
                )
            )
            return
        fetch.target[piece.offset : piece.offset + len(body)] = body
        waiting.set_result(piece.total)

    def peer_lost(self, peer: MemberId, reason: str) -> None:
        """End the fetches from a peer that is gone."""
        for fetch in self._fetches.values():
            if fetch.holder == peer:
                fetch.lost = f"the connection ended: {reason}"
                for waiting in fetch.pieces.values():
                    if not waiting.done():
                        waiting.set_exception(PeerError(fetch.lost))

    async def _fetch_all(self, fetch: _Fetch, digest: bytes) -> None:
        """Fetch pieces with a few requests under way, in order."""
        offsets = iter(range(0, len(fetch.target), PIECE_BYTES))

        async def fetch_some() -> None:
            for offset in offsets:
                await self._fetch_piece(fetch, digest, offset)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WINDOW_PIECES):
                    group.create_task(fetch_some())
        except* PeerError as errors:
            raise _first(errors) from None

    async def _fetch_piece(self, fetch: _Fetch, digest: bytes, offset: int) -> None:
        size = min(PIECE_BYTES, len(fetch.target) - offset)
        why = ""
        for _ in range(TRIES_MAX):
            if fetch.lost:
                raise PeerError(fetch.lost)
            waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            fetch.pieces[offset] = waiting
            try:
                self._send(fetch.holder, GetBytes(digest, offset, size), b"")
                async with asyncio.timeout(PIECE_TIMEOUT_S):
                    if await waiting:
                        return
                why = "it does not have it"
                await asyncio.sleep(RETRY_S)
            except TimeoutError:
                why = f"it did not answer within {PIECE_TIMEOUT_S:g} s"
            finally:
                del fetch.pieces[offset]
        raise PeerError(f"cannot fetch content {short(digest)}: {why}, {TRIES_MAX} tries")


def _first(errors: ExceptionGroup[PeerError]) -> PeerError:
    """Return one of the errors of a group; they say the same."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
