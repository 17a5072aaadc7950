"""Exit codes of every greedw command, and their wording for ``greedw --help``."""

from typing import Final

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_RUNNING: Final = 3
UNREACHABLE: Final = 4
REFUSED: Final = 5
INCOMPATIBLE: Final = 6
DEGRADED: Final = 7
INTERRUPTED: Final = 130

_MEANINGS: Final = (
    (DONE, "done"),
    (FAILED, "failed"),
    (WRONG_USAGE, "wrong usage"),
    (NOT_RUNNING, "the daemon is not running"),
    (UNREACHABLE, "a peer is unreachable or timed out"),
    (REFUSED, "refused (token, permission)"),
    (INCOMPATIBLE, "incompatible version or configuration"),
    (DEGRADED, "not healthy (status --check)"),
    (INTERRUPTED, "interrupted"),
)

EPILOG: Final = (
    "Exit codes: "
    + " · ".join(f"{code} {meaning}" for code, meaning in _MEANINGS)
    + ".\n\nFirst steps: greedw demo trains on this machine alone. For a cluster: greedwd and "
    "greedw init here, greedw invite, then greedwd and greedw join TOKEN on the next machine."
)
