"""What the daemon is told: options first, then the environment, then defaults."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greedw_daemon.cluster.state_dir import clean_name
from greedw_daemon.control.client import default_state_dir
from greedw_daemon.log_setup import FORMATS, LEVELS
from greedw_daemon.network.addresses import DEFAULT_PORT, is_loopback, parse_listen
from greedw_p2p.errors import ConfigError

DEFAULT_LISTEN: Final = f"127.0.0.1:{DEFAULT_PORT}"

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})

_EPILOG: Final = """\
Each option can also be given in the environment: GREEDW_STATE_DIR, GREEDW_LISTEN,
GREEDW_ADVERTISE, GREEDW_INSECURE, GREEDW_NAME, GREEDW_LOG_FORMAT, GREEDW_LOG_LEVEL.

signals: SIGTERM and SIGINT leave the cluster after the round in progress and end, a second one ends
at once. SIGHUP, which a closed terminal sends, does the same; to go on without the terminal, start
with nohup or setsid, or as the systemd service. There, SIGHUP changes nothing.

exit codes: 0 ended as asked; 1 failed (the port is in use, or an internal error); 2 wrong usage;
78 a setting or the state directory must be changed first, starting again will not help.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How one daemon runs."""

    state_dir: Path
    host: str
    port: int
    advertise: str | None
    insecure: bool
    name: str | None
    log_format: str
    log_level: str


def parse_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """Read options and environment.

    Raises:
        ConfigError: a value cannot be used; argparse itself ends the process on unknown options.
    """
    options = _parser(environment).parse_args(arguments)
    host, port = parse_listen(options.listen, "--listen")
    insecure = bool(options.insecure)
    if not is_loopback(host) and not insecure:
        raise ConfigError(
            f"listening on {host} would open this node to the network without encryption or "
            "authentication: mutual TLS is not in this version of greedw",
            hint="listen on 127.0.0.1; or, in a network where you trust every machine, --insecure",
        )
    name = options.name
    if name is not None and (not name or clean_name(name) != name):
        raise ConfigError(
            f"--name {name!r} cannot be a node's name",
            hint="one or more letters, digits, and . _ + -, 64 at most",
        )
    return Settings(
        state_dir=options.state_dir,
        host=host,
        port=port,
        advertise=options.advertise,
        insecure=insecure,
        name=name,
        log_format=_one_of(options.log_format, FORMATS, "--log-format"),
        log_level=_one_of(options.log_level, LEVELS, "--log-level"),
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="greedwd",
        description="The daemon of greedw: one per machine, together they train one model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        default=_state_dir(environment),
        help="identity, config and control socket live there (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=environment.get("GREEDW_LISTEN") or DEFAULT_LISTEN,
        help="numeric address (or localhost) and TCP port for peers; port 0 chooses one "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        default=environment.get("GREEDW_ADVERTISE") or None,
        help="the address that peers are told, where it is not the one listened on",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=_flag(environment, "GREEDW_INSECURE"),
        help="allow a --listen address that other machines reach, without encryption",
    )
    parser.add_argument(
        "--name",
        default=environment.get("GREEDW_NAME") or None,
        help="what people call this node (default: the host's name)",
    )
    parser.add_argument(
        "--log-format",
        metavar="|".join(FORMATS),
        default=environment.get("GREEDW_LOG_FORMAT") or "auto",
        help="auto: coloured on a terminal, key=value elsewhere",
    )
    parser.add_argument(
        "--log-level",
        metavar="|".join(LEVELS),
        default=environment.get("GREEDW_LOG_LEVEL") or "info",
        help="lowest severity that is logged (default: %(default)s)",
    )
    return parser


def _state_dir(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("GREEDW_STATE_DIR", "")
    return Path(chosen) if chosen else default_state_dir()


def _flag(environment: Mapping[str, str], variable: str) -> bool:
    value = environment.get(variable, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise ConfigError(f"{variable}={value} is neither yes nor no", hint="use 1 or 0")
    return value in _TRUE


def _one_of(value: str, allowed: Sequence[str], option: str) -> str:
    if value.lower() not in allowed:
        raise ConfigError(f"{option} {value!r} is not known", hint=f"one of: {', '.join(allowed)}")
    return value.lower()
