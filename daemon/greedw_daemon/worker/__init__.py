"""The worker: the process that computes, its shared memory, and how the daemon talks to it."""
