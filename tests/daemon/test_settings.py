import io
import json
import logging
from pathlib import Path

import pytest

from greedw_daemon import log_setup
from greedw_daemon.network.addresses import (
    DEFAULT_PORT,
    address_for_peers,
    is_loopback,
    parse_listen,
)
from greedw_daemon.settings import parse_settings
from greedw_p2p.config import Address
from greedw_p2p.errors import ConfigError

ANY = "0.0.0.0"  # noqa: S104 - parsed, not bound


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("127.0.0.1", "127.0.0.1", DEFAULT_PORT),
        ("localhost:80", "127.0.0.1", 80),
        ("[::1]:7946", "::1", 7946),
        ("[2001:DB8::0:1]:1", "2001:db8::1", 1),
        ("::1", "::1", DEFAULT_PORT),
        (" 0.0.0.0:65535 ", ANY, 65_535),
    ],
)
def test_listen_takes_numeric_addresses_of_both_families(text: str, host: str, port: int) -> None:
    assert parse_listen(text, "--listen") == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":7946", "example.org:7946", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http",
             "[::1", "1.2.3:80", "[::1]x:80", "127.0.0.1:\u0663"],
)  # fmt: skip
def test_listen_that_is_no_numeric_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text, "--listen")


@pytest.mark.parametrize("host", [ANY, "::", "192.0.2.1"])
def test_address_that_others_reach_needs_insecure(host: str) -> None:
    listen = f"[{host}]:0" if ":" in host else f"{host}:0"
    with pytest.raises(ConfigError, match="mutual TLS is not in this version") as caught:
        parse_settings(["--listen", listen], {})
    assert "--insecure" in caught.value.hint
    assert parse_settings(["--listen", listen, "--insecure"], {}).insecure
    assert parse_settings(["--listen", listen], {"GREEDW_INSECURE": "1"}).insecure


def test_options_win_over_environment_and_environment_over_defaults() -> None:
    environment = {"GREEDW_STATE_DIR": "/srv/greedw", "GREEDW_LISTEN": "127.0.0.1:1"}
    plain = parse_settings([], {})
    assert (plain.host, plain.port) == ("127.0.0.1", DEFAULT_PORT)
    told = parse_settings([], environment)
    assert (told.state_dir, told.port) == (Path("/srv/greedw"), 1)
    both = parse_settings(["--state-dir", "/x", "--listen", "127.0.0.2:2"], environment)
    assert (both.state_dir, both.host, both.port) == (Path("/x"), "127.0.0.2", 2)


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--name", ""], {}),
        (["--name", "two words"], {}),
        (["--name", "\x1b[31m"], {}),
        (["--log-format", "xml"], {}),
        (["--log-level", "loud"], {}),
        ([], {"GREEDW_INSECURE": "perhaps"}),
    ],
)
def test_setting_that_cannot_be_used_is_a_config_error(
    arguments: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(ConfigError):
        parse_settings(arguments, environment)


def test_peers_are_told_what_is_listened_on_unless_told_otherwise() -> None:
    bound = Address("127.0.0.1", 4000)
    assert address_for_peers(bound, None) == bound
    assert address_for_peers(bound, "192.0.2.7:80") == Address("192.0.2.7", 80)
    assert address_for_peers(bound, "192.0.2.7") == Address("192.0.2.7", 4000)
    assert address_for_peers(bound, "[2001:db8::1]:0") == Address("2001:db8::1", 4000)
    assert address_for_peers(bound, "2001:db8::1") == Address("2001:db8::1", 4000)


def test_address_that_cannot_be_dialled_is_not_advertised() -> None:
    with pytest.raises(ConfigError, match="no address that a peer can dial"):
        address_for_peers(Address("127.0.0.1", 4000), "0.0.0.0:4000")


def test_unspecified_address_is_replaced_by_one_of_an_interface() -> None:
    try:
        told = address_for_peers(Address(ANY, 4000), None)
    except ConfigError as error:
        assert "--advertise" in error.hint  # a machine with loopback only  # noqa: PT017
        return
    assert told.port == 4000
    assert told.host != ANY
    assert not is_loopback(told.host)


def test_log_lines_carry_the_node_and_key_values() -> None:
    stream = io.StringIO()
    log_setup.configure(node="lab-a", log_format="text", level="info", stream=stream)
    log_setup.get_logger().info("peer lost", peer="lab-b", reason="it closed the connection")
    log_setup.get_logger().debug("not shown")
    logging.getLogger("greedw_daemon.data_plane.links").warning("attempt broken entry=%d", 7)
    first, second = stream.getvalue().splitlines()
    assert 'node=lab-a event="peer lost" peer=lab-b reason="it closed the connection"' in first
    assert 'level=warning node=lab-a event="attempt broken entry=7"' in second


def test_json_log_lines_are_objects_with_the_trace_inside() -> None:
    stream = io.StringIO()
    log_setup.configure(node="lab-a", log_format="json", level="debug", stream=stream)
    try:
        int("boom")
    except ValueError:
        log_setup.get_logger().exception("node failed")
    line = json.loads(stream.getvalue())
    assert (line["node"], line["level"], line["event"]) == ("lab-a", "error", "node failed")
    assert "ValueError: invalid literal" in line["exception"]
