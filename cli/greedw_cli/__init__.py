"""The command line: everything that a person asks of a greedw daemon."""
