"""Membership on disk: the state directory, invitations, founding and joining a cluster."""
