"""The invitations that this node gave out: made, redeemed once or as often as said, and forgotten.

Only hashes of the secrets are kept. A secret has 128 bits, so guessing is hopeless; the limits on
wrong guesses are there so that whoever tries shows, and costs little.
"""

import hashlib
import hmac
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from greedw_daemon.cluster.state_dir import Invite, StateDir
from greedw_p2p.errors import DaemonError
from greedw_p2p.ids import NodeId
from greedw_p2p.invitation import SECRET_BYTES, TOKEN_ID_BYTES
from greedw_p2p.wire.messages import JoinRequest, RefusalCode, Refused

INVITES_MAX: Final = 64
WRONG_GUESSES_MAX: Final = 5
"""Wrong secrets for one invitation, after which it is void."""

UNKNOWN_MAX: Final = 20
UNKNOWN_WINDOW_S: Final = 60
"""Requests that name no invitation of ours, within this time, after which none are answered."""

TTL_S_MAX: Final = 30 * 86_400
USES_MAX: Final = 1000
_FOR_ANOTHER: Final = "ask for a new one on that node: greedw invite"


class InviteBook:
    """Keeps the invitations of one node; each change is on disk before it takes effect."""

    def __init__(self, directory: StateDir, *, random_bytes: Callable[[int], bytes]) -> None:
        self._directory = directory
        self._random_bytes = random_bytes
        self._invites = {invite.token_id: invite for invite in directory.invites()}
        self._unknown_s: deque[float] = deque(maxlen=UNKNOWN_MAX)

    def make(self, *, ttl_s: int, uses: int, now_s: float) -> tuple[bytes, bytes]:
        """Make an invitation and return its token id and its secret, which is kept nowhere.

        Raises:
            DaemonError: out of range, or too many are open.
        """
        if not 1 <= ttl_s <= TTL_S_MAX:
            raise DaemonError(f"an invitation holds 1 to {TTL_S_MAX} seconds, not {ttl_s}")
        if not 1 <= uses <= USES_MAX:
            raise DaemonError(f"an invitation is good for 1 to {USES_MAX} uses, not {uses}")
        self._drop_expired(now_s)
        if len(self._invites) >= INVITES_MAX:
            raise DaemonError(
                f"{INVITES_MAX} invitations are open already",
                hint="use one of them, or wait until they expire",
            )
        token_id = self._random_bytes(TOKEN_ID_BYTES)
        secret = self._random_bytes(SECRET_BYTES)
        self._keep(
            Invite(
                token_id=token_id.hex(),
                secret_hash=_hash(secret),
                expires_s=int(now_s) + ttl_s,
                uses_left=uses,
                wrong_guesses=0,
                redeemed_by=(),
            )
        )
        return token_id, secret

    def redeem(self, request: JoinRequest, node: NodeId, now_s: float) -> Refused | None:
        """Use an invitation up by one, or say why not; ``check_only`` uses nothing.

        A node that redeemed it before may do so again, because the answer may have been lost.
        """
        if self._is_swamped(now_s):
            return Refused(RefusalCode.BUSY, "too many wrong invitations; try again in a minute")
        invite = self._invites.get(request.token_id.hex())
        if invite is None:
            self._unknown_s.append(now_s)
            return _refused(f"the invitation is not known here, or used up; {_FOR_ANOTHER}")
        if not hmac.compare_digest(invite.secret_hash, _hash(request.secret)):
            return self._count_wrong_guess(invite)
        if invite.expires_s <= now_s:
            return _refused(f"the invitation has expired; {_FOR_ANOTHER}")
        is_repeated = node in invite.redeemed_by
        if invite.uses_left < 1 and not is_repeated:
            return _refused(f"the invitation is used up; {_FOR_ANOTHER}")
        if not request.check_only and not is_repeated:
            self._keep(
                msgspec.structs.replace(
                    invite,
                    uses_left=invite.uses_left - 1,
                    redeemed_by=(*invite.redeemed_by, node),
                )
            )
        return None

    def _count_wrong_guess(self, invite: Invite) -> Refused:
        guesses = invite.wrong_guesses + 1
        if guesses < WRONG_GUESSES_MAX:
            self._keep(msgspec.structs.replace(invite, wrong_guesses=guesses))
        else:
            del self._invites[invite.token_id]
            self._write()
        return _refused(f"the invitation's secret is wrong; {_FOR_ANOTHER}")

    def _is_swamped(self, now_s: float) -> bool:
        oldest = self._unknown_s[0] if len(self._unknown_s) == UNKNOWN_MAX else None
        return oldest is not None and now_s - oldest < UNKNOWN_WINDOW_S

    def _drop_expired(self, now_s: float) -> None:
        kept = {i.token_id: i for i in self._invites.values() if i.expires_s > now_s}
        self._invites = kept

    def _keep(self, invite: Invite) -> None:
        self._invites[invite.token_id] = invite
        self._write()

    def _write(self) -> None:
        self._directory.write_invites(tuple(self._invites.values()))


def _hash(secret: bytes) -> str:
    return hashlib.blake2b(secret, digest_size=32).hexdigest()


def _refused(reason: str) -> Refused:
    return Refused(RefusalCode.TOKEN, reason)
