"""The daemon of greedw: asyncio, TCP, timers and the worker process around the pure core."""
