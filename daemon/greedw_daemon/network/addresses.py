"""Where to listen and what to tell peers: numeric addresses only, and none that a peer cannot use.

A host name would be resolved differently on each machine, and may change; an address of loopback,
docker, a virtual bridge or a tunnel means another machine, or none, to a peer elsewhere.
"""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

from greedw_p2p.config import Address
from greedw_p2p.errors import ConfigError

DEFAULT_PORT: Final = 7946

_SIOCGIFADDR: Final = 0x8915
_LOCAL_ONLY: Final = (
    "br-", "cali", "cni", "docker", "dummy", "flannel", "ip6tnl", "lo", "ppp", "sit", "tap",
    "tailscale", "tun", "utun", "veth", "virbr", "vmnet", "wg", "zt",
)  # fmt: skip
"""Names of interfaces whose addresses mean nothing on another machine."""


def parse_listen(text: str, option: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, ``[HOST]:PORT`` or ``HOST`` into a numeric host and a port.

    Port 0 lets the system choose one. Without a port, it is ``DEFAULT_PORT``.

    Raises:
        ConfigError: not of that form, or the host is a name.
    """
    host, port = _split(text.strip())
    if host == "localhost":
        host = "127.0.0.1"
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"{option} takes a numeric address and a port, not {text!r}",
            hint=f"for example 127.0.0.1:{DEFAULT_PORT} or '[::1]:{DEFAULT_PORT}'",
        ) from None
    if port and (not port.isascii() or not port.isdigit() or int(port) > 65_535):
        raise ConfigError(f"{option}: {port!r} is not a TCP port", hint="ports go from 0 to 65535")
    return str(parsed), int(port) if port else DEFAULT_PORT


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        if closing and (not rest or rest.startswith(":")):
            return host, rest.removeprefix(":")
        return text, ""
    if text.count(":") > 1:  # an IPv6 address without brackets has no room for a port
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    return ipaddress.ip_address(host).is_loopback


def address_for_peers(listen: Address, advertise: str | None) -> Address:
    """Return the address that peers are told.

    Args:
        listen: what the listening socket is bound to.
        advertise: the operator's word, which overrides; without a port (or with port 0) it means
            the port that is listened on.

    Raises:
        ConfigError: ``advertise`` is not an address that can be dialled.
    """
    if advertise is not None:
        return _advertised(listen, advertise)
    if not ipaddress.ip_address(listen.host).is_unspecified:
        return listen
    candidates = _interface_hosts(ipaddress.ip_address(listen.host).version)
    if not candidates:
        raise ConfigError(
            f"listening on {listen}, but no interface has an address that a peer could use",
            hint="say which one to tell them: --advertise HOST:PORT",
        )
    return Address(candidates[0], listen.port)


def _advertised(listen: Address, advertise: str) -> Address:
    host, port = parse_listen(advertise, "--advertise")
    if ipaddress.ip_address(host).is_unspecified:
        raise ConfigError(
            f"--advertise {advertise} is no address that a peer can dial",
            hint="name the address under which peers reach this machine",
        )
    named_port = _split(advertise.strip())[1]
    return Address(host, port if named_port not in {"", "0"} else listen.port)


def _interface_hosts(version: int) -> list[str]:
    """Return usable addresses of this machine, the one towards the default route first."""
    by_interface = _ipv4_hosts() if version == 4 else _ipv6_hosts()
    usable = [
        host
        for name, host in by_interface
        if not name.startswith(_LOCAL_ONLY) and _is_usable(ipaddress.ip_address(host))
    ]
    preferred = _default_route_host(version)
    return sorted(usable, key=lambda host: (host != preferred, usable.index(host)))


def _is_usable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _ipv4_hosts() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def _ipv6_hosts() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [(f[5], str(ipaddress.IPv6Address(bytes.fromhex(f[0])))) for f in fields if len(f) == 6]


def _default_route_host(version: int) -> str | None:
    """Return the address that packets to elsewhere would carry; sends nothing."""
    family, target = (
        (socket.AF_INET, "192.0.2.1") if version == 4 else (socket.AF_INET6, "2001:db8::1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None
