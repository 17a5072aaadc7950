"""The control socket: how commands on this machine talk to the daemon."""
