"""Membership: who is around, who is heard, and how news of it spreads.

All of it is a hint: who may vote is decided by the log alone.
"""
