"""The blocking client: `AsyncClient` behind a loop thread of its own, method by method, so that there is one code.

Nothing is decided here. What each call promises stands in `client.py`.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from msgspec import Raw

from horae import wire
from horae.client import DEADLINE_SECONDS, DEFAULT_URL, AsyncClient
from horae.jobs import Beat, Claim, Ended, Ending, Failure, Job, JobOptions, JobPage, NewJob, Renewal
from horae.transport import new_event_loop

T = TypeVar("T")


class Client:
    """The blocking client: as `AsyncClient`, method by method. Threads may share one. Use as `with`, or `close()` it.

    Its calls run on the loop of a thread of its own. Never use it on an event loop's thread: that is `AsyncClient`'s.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._client = AsyncClient(
            urls, token=token, deadline_seconds=deadline_seconds, connections=connections, tls=tls
        )
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="horae-client", daemon=True)
        self._thread.start()
        self._closed = False

    def close(self) -> None:
        """Drop the connections and end the thread. A second close does nothing."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            call.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the caller must not leave the call running
            raise

    def submit(
        self,
        task: str,
        payload: Any = None,
        *,
        deadline_seconds: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        return self._run(self._client.submit(task, payload, deadline_seconds=deadline_seconds, **options))

    def submit_many(self, jobs: Iterable[NewJob], *, deadline_seconds: float | None = None) -> list[Job]:
        return self._run(self._client.submit_many(jobs, deadline_seconds=deadline_seconds))

    def job(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        return self._run(self._client.job(job_id, deadline_seconds=deadline_seconds))

    def jobs_page(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        task: str | None = None,
        schedule_id: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        return self._run(
            self._client.jobs_page(
                queue=queue, state=state, task=task, schedule_id=schedule_id, tag=tag, limit=limit, cursor=cursor
            )
        )

    def jobs(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        task: str | None = None,
        schedule_id: str | None = None,
        tag: str | None = None,
        page: int = 200,
    ) -> Iterator[Job]:
        cursor: str | None = None
        while True:
            got = self.jobs_page(
                queue=queue, state=state, task=task, schedule_id=schedule_id, tag=tag, limit=page, cursor=cursor
            )
            yield from got.jobs
            cursor = got.next_cursor
            if cursor is None:
                return

    def wait(self, job_id: str, *, wait_seconds: float | None = None) -> Job:
        return self._run(self._client.wait(job_id, wait_seconds=wait_seconds))

    def result(self, job_id: str, *, wait_seconds: float | None = None) -> Any:
        return self._run(self._client.result(job_id, wait_seconds=wait_seconds))

    def cluster(self, *, local: bool = False) -> wire.ClusterView:
        return self._run(self._client.cluster(local=local))

    def cancel(self, job_id: str) -> Job:
        return self._run(self._client.cancel(job_id))

    def requeue(self, job_id: str) -> Job:
        return self._run(self._client.requeue(job_id))

    def run_now(self, job_id: str) -> Job:
        return self._run(self._client.run_now(job_id))

    def delete(self, job_id: str) -> None:
        self._run(self._client.delete(job_id))

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        max_jobs: int = 1,
        wait_seconds: float = 0,
        lease_seconds: float | None = None,
        claim_id: str | None = None,
    ) -> list[Claim]:
        return self._run(
            self._client.claim(
                worker,
                queues,
                max_jobs=max_jobs,
                wait_seconds=wait_seconds,
                lease_seconds=lease_seconds,
                claim_id=claim_id,
            )
        )

    def heartbeat(self, worker: str, leases: Sequence[Beat]) -> list[Renewal]:
        return self._run(self._client.heartbeat(worker, leases))

    def complete(self, job_id: str, lease_token: int, result: Any = None) -> Job:
        return self._run(self._client.complete(job_id, lease_token, result))

    def fail(
        self,
        job_id: str,
        lease_token: int,
        error: Failure,
        *,
        retry: bool = True,
        retry_in_seconds: float | None = None,
    ) -> Job:
        return self._run(self._client.fail(job_id, lease_token, error, retry=retry, retry_in_seconds=retry_in_seconds))

    def release(self, job_id: str, lease_token: int, *, delay_seconds: float = 0, progress: Raw | None = None) -> Job:
        return self._run(self._client.release(job_id, lease_token, delay_seconds=delay_seconds, progress=progress))

    def end_many(self, worker: str, endings: Sequence[Ending]) -> list[Ended]:
        return self._run(self._client.end_many(worker, endings))
