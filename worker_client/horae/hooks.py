"""What a program wants done around every attempt: before it, after its success, at its failure.

Hooks run on the worker's loop, in the handler's own task, so that context variables that one sets are the handler's,
also in its thread. Plain functions or async ones; a plain one must not block. Not here: when they are called
(`runner.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from horae import logs

if TYPE_CHECKING:
    from horae.registry import Context

Hook = Callable[..., Any]

_TAKES: Final = {"before": ("context",), "after": ("context", "result"), "on_error": ("context", "error")}


class Hooks:
    """Those of a worker, in the order of their registration."""

    def __init__(self) -> None:
        self._before: list[Hook] = []
        self._after: list[Hook] = []
        self._on_error: list[Hook] = []

    def add(self, moment: str, hook: Hook) -> None:
        """Raises: TypeError when it cannot take what it will be called with."""
        takes = _TAKES[moment]
        if not callable(hook):
            raise TypeError(f"@worker.{moment} is for a function, not {hook!r}")
        try:
            inspect.signature(hook).bind(*takes)
        except TypeError:
            raise TypeError(f"a hook of @worker.{moment} is called with ({', '.join(takes)}): {hook!r}") from None
        getattr(self, f"_{moment}").append(hook)

    async def before(self, context: Context) -> None:
        """The first to the last. Raises: what one of them raises; the attempt has failed with it."""
        for hook in self._before:
            await _done(hook(context))

    async def after(self, context: Context, result: Any) -> None:
        """The last to the first. Raises: as `before`."""
        for hook in reversed(self._after):
            await _done(hook(context, result))

    async def on_error(self, context: Context, error: BaseException) -> None:
        """The last to the first. Raises nothing of theirs: how the attempt failed stays what it was."""
        for hook in reversed(self._on_error):
            try:
                await _done(hook(context, error))
            except Exception:  # the root of a hook: the attempt has failed already, and of what is to be told
                logs.failure("hook_broken", hook=getattr(hook, "__qualname__", repr(hook)), job_id=context.job_id)


async def _done(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
