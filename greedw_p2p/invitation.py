"""Invitations: the token that ``greedw invite`` prints and ``greedw join`` takes.

A token is ``gw1-`` and groups of four characters. The characters are those of bech32, which has no
``1``, ``b``, ``i`` or ``o``, so nothing in it can be mistaken for something else; case, blanks and
dashes do not matter. They carry, five bits each::

    length of the payload in bytes   2 characters
    payload                          cluster hash 8, token id 8, secret 16, then 1 to 8 addresses
    checksum                         6 characters, the code of bech32m

An address is one byte 4 or 6, the address, and the port in two bytes. The code finds every error of
one or two characters in a token of any length that occurs (a test goes through all of them), so a
typo is named here and never becomes a refused secret elsewhere. How long an invitation holds, and
how often, only the inviter knows.

Source of the checksum: P. Wuille, BIP 350, "Bech32m format" (2020).
"""

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from greedw_p2p.config import Address
from greedw_p2p.errors import TokenError, TokenVersionError
from greedw_p2p.ids import ClusterId

TOKEN_VERSION: Final = 1
CLUSTER_HASH_BYTES: Final = 8
TOKEN_ID_BYTES: Final = 8
SECRET_BYTES: Final = 16
ADDRESSES_MAX: Final = 8
"""Addresses of one inviter; a host with more has some that no newcomer needs."""

_ALPHABET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUE_OF: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PREFIX: Final = f"gw{TOKEN_VERSION}"
_GROUP_CHARS: Final = 4
_LENGTH_CHARS: Final = 2
_CHECKSUM_CHARS: Final = 6
_CHECKSUM_CONSTANT: Final = 0x2BC830A3
CHECKSUM_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_FIXED_BYTES: Final = CLUSTER_HASH_BYTES + TOKEN_ID_BYTES + SECRET_BYTES
_ADDRESS_BYTES: Final = {4: 4, 6: 16}
_PORT_BYTES: Final = 2
_TOKEN_CHARS_MAX: Final = 1024
"""Longer text is not looked at: eight IPv6 addresses need about 300 characters."""

_HINT: Final = "copy the whole token again, or ask for a new one: greedw invite"

assert _FIXED_BYTES + ADDRESSES_MAX * (1 + 16 + _PORT_BYTES) < 2 ** (5 * _LENGTH_CHARS)


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a token says: which cluster, where to ask, and the secret that opens the door once."""

    cluster_hash: bytes
    token_id: bytes
    secret: bytes
    addresses: tuple[Address, ...]

    def __post_init__(self) -> None:
        assert len(self.cluster_hash) == CLUSTER_HASH_BYTES
        assert len(self.token_id) == TOKEN_ID_BYTES
        assert len(self.secret) == SECRET_BYTES
        assert 1 <= len(self.addresses) <= ADDRESSES_MAX


def hash_of_cluster(cluster: ClusterId) -> bytes:
    """Return what a token carries instead of the cluster's id: 8 bytes of BLAKE2b."""
    return hashlib.blake2b(bytes.fromhex(cluster), digest_size=CLUSTER_HASH_BYTES).digest()


def format_token(invitation: Invitation) -> str:
    """Return the token, in groups, for people and for ``parse_token``."""
    payload = b"".join(
        (
            invitation.cluster_hash,
            invitation.token_id,
            invitation.secret,
            *(_pack_address(address) for address in invitation.addresses),
        )
    )
    length = len(payload)
    values = [length >> 5, length & 31, *_to_values(payload)]
    values += _checksum_of(values)
    text = "".join(_ALPHABET[value] for value in values)
    groups = (text[at : at + _GROUP_CHARS] for at in range(0, len(text), _GROUP_CHARS))
    return "-".join((_PREFIX, *groups))


def parse_token(text: str) -> Invitation:
    """Parse what a person typed or pasted.

    Raises:
        TokenVersionError: the token was made by another version of greedw.
        TokenError: it is no token, is cut short, or has a typo; the message says which.
    """
    if len(text) > 2 * _TOKEN_CHARS_MAX:
        raise TokenError("this is not an invitation token: it is far too long", hint=_HINT)
    plain = re.sub(r"[\s-]+", "", text).lower()
    body = _without_prefix(plain)
    values = _values_of(body)
    expected = _expected_chars(values)
    if _polymod([*_prefix_values(), *values]) != _CHECKSUM_CONSTANT:
        if len(values) < expected:
            raise _cut_short(len(values), expected)
        raise TokenError("the token is mistyped: its checksum does not match", hint=_HINT)
    if len(values) != expected:
        raise TokenError("the token is mistyped: its length does not match", hint=_HINT)
    return _parse_payload(_to_bytes(values[_LENGTH_CHARS:-_CHECKSUM_CHARS]))


def _without_prefix(plain: str) -> str:
    """Return the token after its version prefix."""
    if not plain:
        raise TokenError("the token is empty", hint=_HINT)
    if plain.startswith(_PREFIX):
        return plain[len(_PREFIX) :]
    # The digits of another version end at the first dash, which is gone by now; one digit is enough
    # to tell newer from older until version 10 comes.
    other = re.match(r"gw([0-9])", plain)
    if other is None:
        raise TokenError(
            f"this is not an invitation token: it does not begin with {_PREFIX}-", hint=_HINT
        )
    if int(other[1]) > TOKEN_VERSION:
        raise TokenVersionError(
            f"the token was made by a newer greedw (gw{other[1]}, this one reads {_PREFIX})",
            hint="install the same version of greedw on both machines",
        )
    raise TokenVersionError(
        f"the token was made by an older greedw (gw{other[1]}, this one reads {_PREFIX})",
        hint="install the same version of greedw on both machines",
    )


def _values_of(body: str) -> list[int]:
    """Return the five-bit values of the characters after the prefix."""
    for position, character in enumerate(body):
        if character not in _VALUE_OF:
            raise TokenError(
                f"the token is mistyped: character {position + len(_PREFIX) + 1} (dashes not "
                f"counted) is {character!r}, which no token contains",
                hint=_HINT,
            )
    return [_VALUE_OF[character] for character in body]


def _expected_chars(values: list[int]) -> int:
    """Return the number of characters that the length in front announces."""
    if len(values) < _LENGTH_CHARS:
        raise _cut_short(len(values), None)
    length = values[0] << 5 | values[1]
    return _LENGTH_CHARS + -(-length * 8 // 5) + _CHECKSUM_CHARS


def _cut_short(present: int, expected: int | None) -> TokenError:
    wanted = "" if expected is None else f" of {expected}"
    return TokenError(
        f"the token is cut short or mistyped: {present}{wanted} characters after {_PREFIX}",
        hint=_HINT,
    )


def _parse_payload(payload: bytes) -> Invitation:
    """Split a payload whose checksum held."""
    if len(payload) < _FIXED_BYTES:
        raise TokenError("the token is too short to be an invitation", hint=_HINT)
    secret_at = CLUSTER_HASH_BYTES + TOKEN_ID_BYTES
    return Invitation(
        cluster_hash=payload[:CLUSTER_HASH_BYTES],
        token_id=payload[CLUSTER_HASH_BYTES:secret_at],
        secret=payload[secret_at:_FIXED_BYTES],
        addresses=_parse_addresses(payload[_FIXED_BYTES:]),
    )


def _parse_addresses(data: bytes) -> tuple[Address, ...]:
    addresses: list[Address] = []
    at = 0
    while at < len(data):
        size = _ADDRESS_BYTES.get(data[at], 0)
        end = at + 1 + size + _PORT_BYTES
        port = int.from_bytes(data[end - _PORT_BYTES : end])
        if size == 0 or end > len(data) or port == 0:
            raise TokenError("the token holds an address that cannot be read", hint=_HINT)
        host = str(ipaddress.ip_address(data[at + 1 : at + 1 + size]))
        addresses.append(Address(host, port))
        at = end
    if not 1 <= len(addresses) <= ADDRESSES_MAX:
        raise TokenError(f"the token holds {len(addresses)} addresses", hint=_HINT)
    return tuple(addresses)


def _pack_address(address: Address) -> bytes:
    parsed = ipaddress.ip_address(address.host)
    return bytes((parsed.version,)) + parsed.packed + address.port.to_bytes(_PORT_BYTES)


def _to_values(data: bytes) -> list[int]:
    """Cut bytes into groups of five bits, most significant first, the last padded with zeros."""
    bits = len(data) * 8
    padding = -bits % 5
    whole = int.from_bytes(data) << padding
    count = (bits + padding) // 5
    return [whole >> 5 * (count - 1 - at) & 31 for at in range(count)]


def _to_bytes(values: list[int]) -> bytes:
    """Join groups of five bits into bytes; what is over must be zero."""
    whole = 0
    for value in values:
        whole = whole << 5 | value
    padding = len(values) * 5 % 8
    if whole & ((1 << padding) - 1):
        raise TokenError("the token is mistyped: its last characters do not fit", hint=_HINT)
    return (whole >> padding).to_bytes(len(values) * 5 // 8)


def _prefix_values() -> list[int]:
    """Return the prefix as the code sees it, so that a changed version does not pass."""
    return [*(ord(c) >> 5 for c in _PREFIX), 0, *(ord(c) & 31 for c in _PREFIX)]


def _checksum_of(values: list[int]) -> list[int]:
    remainder = _polymod([*_prefix_values(), *values, *([0] * _CHECKSUM_CHARS)])
    remainder ^= _CHECKSUM_CONSTANT
    return [remainder >> 5 * (_CHECKSUM_CHARS - 1 - at) & 31 for at in range(_CHECKSUM_CHARS)]


def _polymod(values: list[int]) -> int:
    """Return the remainder of the values as a polynomial over GF(32), by bech32's generator."""
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(CHECKSUM_GENERATOR):
            if top >> bit & 1:
                remainder ^= generator
    return remainder
