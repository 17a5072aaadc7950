"""Redeeming an invitation: ask the inviter, over a connection of its own, to be let in."""

import asyncio
import contextlib
from typing import Final

from greedw_daemon.network.handshake import HANDSHAKE_S, RefusedError, connect
from greedw_p2p.config import Address, Member
from greedw_p2p.errors import DaemonError, PeerError, TokenError, TokenVersionError
from greedw_p2p.ids import ClusterId
from greedw_p2p.invitation import Invitation, hash_of_cluster, parse_token
from greedw_p2p.wire.codec import JOIN_ANSWER_LIMITS, decode
from greedw_p2p.wire.messages import (
    PROTOCOL_VERSION,
    Channel,
    Hello,
    JoinAccepted,
    JoinRequest,
    RefusalCode,
    Refused,
)

UNREACHABLE: Final = 4
REFUSED: Final = 5
INCOMPATIBLE: Final = 6

TRIES: Final = 3
RETRY_S: Final = 1.0

UNKNOWN_ADDRESS: Final = Address("0.0.0.0", 1)  # noqa: S104 - said, not bound
"""What a node says that does not listen yet: it joins before its daemon was ever started."""


def read_token(text: str) -> Invitation:
    """Parse a token for a command.

    Raises:
        DaemonError: with the exit code of what is wrong with it.
    """
    try:
        return parse_token(text)
    except TokenVersionError as error:
        raise DaemonError(str(error), hint=error.hint, exit_code=INCOMPATIBLE) from error
    except TokenError as error:
        raise DaemonError(str(error), hint=error.hint, exit_code=REFUSED) from error


async def redeem(
    invitation: Invitation, me: Member, *, check_only: bool = False, tries: int = TRIES
) -> JoinAccepted:
    """Ask at the invitation's addresses in turn until one answers.

    Raises:
        DaemonError: nobody answers (exit 4, with each address and why), the invitation is refused
            (5), or the inviter is of another version (6).
    """
    failures: dict[str, str] = {}
    for attempt in range(tries):
        if attempt:
            await asyncio.sleep(RETRY_S)
        for address in invitation.addresses:
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    return await _ask(address, invitation, me, check_only=check_only)
            except RefusedError as error:
                if error.code is not RefusalCode.BUSY:
                    raise _refused(address, error) from error
                failures[str(address)] = str(error)
            except TimeoutError:
                failures[str(address)] = f"no answer within {HANDSHAKE_S:g} s"
            except PeerError as error:
                failures[str(address)] = str(error)
    raise _unreachable(failures, tries)


def cluster_field(invitation: Invitation) -> ClusterId:
    """Return what a newcomer says for the cluster's id: its hash, then zeros.

    It does not know the id yet; the inviter compares the hash.
    """
    return ClusterId(invitation.cluster_hash.hex().ljust(32, "0"))


def names_cluster(hello: Hello, cluster: ClusterId) -> bool:
    """Tell whether a newcomer's Hello means this cluster."""
    return hello.cluster == hash_of_cluster(cluster).hex().ljust(32, "0")


async def _ask(
    address: Address, invitation: Invitation, me: Member, *, check_only: bool
) -> JoinAccepted:
    stream = await connect(address)
    try:
        cluster = cluster_field(invitation)
        stream.write(Hello(PROTOCOL_VERSION, Channel.JOIN, cluster, me, 0))
        stream.write(JoinRequest(invitation.token_id, invitation.secret, check_only))
        frame = await stream.read(JOIN_ANSWER_LIMITS)
        answer = decode(frame.kind, frame.header, (JoinAccepted, Refused))
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closing
            stream.close()
    if isinstance(answer, Refused):
        raise RefusedError(answer.code, answer.reason)
    assert isinstance(answer, JoinAccepted)
    if hash_of_cluster(answer.cluster) != invitation.cluster_hash:
        raise RefusedError(RefusalCode.CLUSTER, "it answers for another cluster than the token's")
    return answer


def _refused(address: Address, error: RefusedError) -> DaemonError:
    if error.code is RefusalCode.VERSION:
        return DaemonError(f"{address} refused: {error}", exit_code=INCOMPATIBLE)
    return DaemonError(
        f"{address} refused the token: {error}",
        hint="make a new token where you made this one: greedw invite",
        exit_code=REFUSED,
    )


def _unreachable(failures: dict[str, str], tries: int) -> DaemonError:
    listed = "; ".join(f"{address}: {why}" for address, why in failures.items())
    first = next(iter(failures))
    port = first.rpartition(":")[2]
    what = "the token's address" if len(failures) == 1 else "none of the token's addresses"
    verb = "does not answer" if len(failures) == 1 else "answers"
    return DaemonError(
        f"{what} {verb} ({listed}; {tries} tries)",
        hint=f"is greedwd running there, and does a firewall let TCP port {port} in?",
        exit_code=UNREACHABLE,
    )
