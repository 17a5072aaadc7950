"""Tasks of a part that lives as long as it wants and then ends all of them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from greedw_daemon.log_setup import get_logger

log = get_logger()


class TaskSet:
    """Holds tasks so that none is lost, none fails unseen, and all end with their owner.

    ``asyncio.TaskGroup`` is not it: there, one connection that fails would end all others.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work``; an error that it does not handle is a bug, and is logged with its trace."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended; the caller's own one excepted."""
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)
