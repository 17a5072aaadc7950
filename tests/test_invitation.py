import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p import invitation as tokens
from greedw_p2p.config import Address
from greedw_p2p.errors import TokenError, TokenVersionError
from greedw_p2p.ids import ClusterId
from greedw_p2p.invitation import Invitation, format_token, hash_of_cluster, parse_token

addresses = st.builds(
    Address,
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    st.integers(1, 65_535),
)
invitations = st.builds(
    Invitation,
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=16, max_size=16),
    st.lists(addresses, min_size=1, max_size=8).map(tuple),
)
SAMPLE = Invitation(b"c" * 8, b"i" * 8, b"s" * 16, (Address("192.0.2.14", 7946),))
ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


@given(invitations)
def test_token_reads_back_as_what_was_written(invitation: Invitation) -> None:
    assert parse_token(format_token(invitation)) == invitation


@given(invitations, st.data())
def test_token_ignores_case_blanks_and_dashes(invitation: Invitation, data: st.DataObject) -> None:
    plain = format_token(invitation).replace("-", "")
    pieces = [
        data.draw(st.sampled_from([c, c.upper(), f" {c}", f"{c}\n", f"-{c}"]), label=c)
        for c in plain[:40]
    ]
    assert parse_token("".join(pieces) + plain[40:]) == invitation


@given(invitations, st.data())
def test_any_single_changed_character_is_detected(
    invitation: Invitation, data: st.DataObject
) -> None:
    token = format_token(invitation)
    position = data.draw(st.sampled_from([i for i, c in enumerate(token) if c != "-"]))
    character = data.draw(st.sampled_from([c for c in ALPHABET + "bio1" if c != token[position]]))
    with pytest.raises(TokenError):
        parse_token(token[:position] + character + token[position + 1 :])


@given(invitations, st.data())
def test_two_changed_characters_are_named_as_a_typo(
    invitation: Invitation, data: st.DataObject
) -> None:
    # Not in the prefix, which is named otherwise, nor in the two characters of the length.
    token = list(format_token(invitation).replace("-", ""))
    first, second = data.draw(
        st.lists(st.integers(5, len(token) - 1), min_size=2, max_size=2, unique=True)
    )
    for position in (first, second):
        token[position] = data.draw(st.sampled_from([c for c in ALPHABET if c != token[position]]))
    with pytest.raises(TokenError, match="mistyped: its checksum does not match"):
        parse_token("".join(token))


def test_no_error_of_one_or_two_characters_passes_the_code_at_any_position() -> None:
    # The code is linear: an error passes if its syndrome is 0, two errors if theirs are equal.
    longest = Invitation(
        bytes(8), bytes(8), bytes(16), tuple(Address("2001:db8::1", 1) for _ in range(8))
    )
    length = len(format_token(longest).replace("-", "")) - len("gw1")
    syndromes: set[int] = set()
    for value in range(1, 32):
        syndrome = _step(0, value)
        for _ in range(length):
            assert syndrome != 0
            assert syndrome not in syndromes
            syndromes.add(syndrome)
            syndrome = _step(syndrome, 0)
    assert len(syndromes) == 31 * length


def _step(remainder: int, value: int) -> int:
    top = remainder >> 25
    remainder = (remainder & 0x1FFFFFF) << 5 ^ value
    for bit, generator in enumerate(tokens.CHECKSUM_GENERATOR):
        if top >> bit & 1:
            remainder ^= generator
    return remainder


@given(st.integers(0, 60))
def test_truncated_token_is_named_as_cut_short(kept: int) -> None:
    plain = format_token(SAMPLE).replace("-", "")
    with pytest.raises(TokenError, match="cut short"):
        parse_token(plain[: 3 + kept])


def test_swapped_neighbours_are_detected() -> None:
    plain = format_token(SAMPLE).replace("-", "")
    for at in range(3, len(plain) - 1):
        swapped = plain[:at] + plain[at + 1] + plain[at] + plain[at + 2 :]
        if swapped != plain:
            with pytest.raises(TokenError):
                parse_token(swapped)


def test_token_of_another_version_is_named() -> None:
    body = format_token(SAMPLE)[3:]
    with pytest.raises(TokenVersionError, match="newer greedw"):
        parse_token("gw2" + body)
    with pytest.raises(TokenVersionError, match="older greedw"):
        parse_token("gw0" + body)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("hello", "does not begin with gw1-"),
        ("gw1-" + "q" * 5000, "too long"),
        ("gw1-bbbb", "character 4 .* is 'b'"),
    ],
)
def test_text_that_is_no_token_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(TokenError, match=words):
        parse_token(text)


@given(st.text(max_size=80))
def test_any_text_is_an_invitation_or_a_token_error(text: str) -> None:
    for candidate in (text, "gw1-" + text):
        with pytest.raises(TokenError):
            parse_token(candidate)


def test_addresses_stay_numeric_and_in_order() -> None:
    order = (Address("2001:db8::7", 7946), Address("192.0.2.1", 80))
    invitation = Invitation(bytes(8), bytes(8), bytes(16), order)
    parsed = parse_token(format_token(invitation)).addresses
    assert parsed == order
    assert all(ipaddress.ip_address(address.host) for address in parsed)


def test_hash_of_cluster_depends_on_the_whole_id() -> None:
    first, second = ClusterId("a" * 32), ClusterId("a" * 31 + "b")
    assert hash_of_cluster(first) == hash_of_cluster(first)
    assert hash_of_cluster(first) != hash_of_cluster(second)
