"""A cluster of real nodes in one process: virtual time, seeded delays and faults, and an oracle."""
