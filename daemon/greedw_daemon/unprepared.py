"""What a daemon says of itself while its node is in no cluster."""

from typing import Any, Final

from greedw_daemon.cluster.state_dir import Identity
from greedw_p2p.errors import DaemonError

INCOMPATIBLE: Final = 6
HINT: Final = "greedw init makes a new cluster, greedw join TOKEN enters one"


def unprepared_error() -> DaemonError:
    """Return what a call is told that needs a cluster."""
    return DaemonError("this node is in no cluster yet", hint=HINT, exit_code=INCOMPATIBLE)


def unprepared_status(identity: Identity, address: str) -> dict[str, Any]:
    """Return a status with the same keys as a member's."""
    return {
        "node": identity.node,
        "name": identity.name,
        "incarnation": 0,
        "address": address,
        "cluster": "",
        "lineage": "",
        "state": "unprepared",
        "committed": 0,
        "leader": None,
        "quorum": 0,
        "hears_quorum": False,
        "pause": HINT,
        "recoverable": True,
        "members": [],
        "jobs": [],
        "topology": {
            "entry": 0,
            "root": None,
            "edges": [],
            "shares": {},
            "predicted_ms": None,
            "bound_ms": None,
            "links_known": 0,
            "links_wanted": 0,
        },
        "phase": "idle",
    }
