"""Jobs granted by the leader to a caller that had hung up on this node: they go straight back, the attempt not counted.

The leader does so for its own callers; to it, this node is one, and has its answer. So it is this node that ends those
leases, by their tokens, as their caller could: whoever holds the jobs by then has others. Under a claim id the caller
may have asked again elsewhere, and been given the same jobs: the leader, who knows, then leaves them. If this node dies
first, or no leader is found in time, the leases run out. Not here: how the answer is got hold of (`line.py`).
Next to read: `answer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

import msgspec

from horae import wire
from horae_http.answer import MSGPACK, Answer
from horae_http.errors import Failure
from horae_http.line import Broken, Late, Reply
from horae_http.routing import PASSED_ON_BY, Call
from horae_http.workers import CLAIMS, UNLESS_REPEATED
from horae_node import logs
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused

LATE_S: Final = 5.0
"""How long an answer may still come after its caller left: a leader that lives is told, and ends it at once."""
TRIES_MAX: Final = 4
"""Each waits for a leader by itself, two seconds or more: together as long as the longest of elections."""
PAUSE_S: Final = 0.5
SHED_PAUSE_S: Final = 5.0
"""Behind a refusal for load, which endings meet last: a leader that stores nothing at the moment may do so again."""
UNDER_WAY_MAX: Final = 4096
"""Answers on their way back at once: as many as may have been on their way here. Past it their leases run out."""
_OVER: Final = frozenset({"lease_lost", "not_found"})
"""Refusals that say that there is nothing to give back."""

log = logs.get_log("http")


class _Lease(msgspec.Struct):
    id: str
    lease_token: int


class _Granted(msgspec.Struct):
    jobs: list[_Lease]


_read_json = msgspec.json.Decoder(_Granted).decode
_read_packed = msgspec.msgpack.Decoder(_Granted).decode
_read_results = msgspec.json.Decoder(wire.EndingsAnswer).decode

EndLeases = Callable[[Call], Awaitable[Answer]]


class Returns:
    """One for a node, on its loop. `end_leases` passes such a call on to whoever leads, and raises what that raises."""

    def __init__(self, end_leases: EndLeases) -> None:
        self._end_leases = end_leases
        self._under_way: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop; what was not given back waits for its leases. A second call does nothing."""
        for task in self._under_way:
            task.cancel()

    async def settle(self) -> None:
        """Until nothing is on its way back."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def begin(self, work: Coroutine[object, object, None]) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            work.close()
            log.warning("grant_not_given_back", under_way=UNDER_WAY_MAX)
            return
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("give_back_failed", exc=error)

    async def take_late(self, claim: Call, late: Late) -> None:
        """Give back what an answer holds that its caller did not wait for, if it comes."""
        try:
            async with asyncio.timeout(LATE_S):
                reply = await late
        except (TimeoutError, Broken):
            return
        await self.give_back(claim, reply)

    async def give_back(self, claim: Call, reply: Reply) -> None:
        """Release every job of this answer."""
        granted = _granted(reply)
        if not granted:
            return
        ending = _release_of(claim, granted, reply.claim_mark)
        if ending is None:
            return
        pause_s = 0.0
        for _ in range(TRIES_MAX):
            await asyncio.sleep(pause_s)
            pause_s = PAUSE_S
            try:
                answer = await self._end_leases(ending)
            except NotApplied as error:
                if error.code == "rate_limited":
                    pause_s = SHED_PAUSE_S
                continue
            except (Failure, Refused, OutcomeUnknown):
                continue
            if answer.status == 429:
                pause_s = SHED_PAUSE_S
            if answer.status == 200 and _is_over(answer.content):
                log.event("grant_given_back", jobs=len(granted))
                return
        log.warning("grant_not_given_back", jobs=len(granted))


class Claim:
    """One claim that is passed on: what becomes of its answer when the caller is gone."""

    __slots__ = ("_call", "_reply", "_returns")

    def __init__(self, returns: Returns, call: Call) -> None:
        self._returns = returns
        self._call = call
        self._reply: Reply | None = None

    def on_left(self, late: Late) -> None:
        """The caller left before the answer came."""
        self._returns.begin(self._returns.take_late(self._call, late))

    def delivery(self, reply: Reply) -> Claim | None:
        """This claim with its answer, which must be delivered; None when it granted nothing for sure."""
        if reply.status != 200:
            return None
        self._reply = reply
        return self

    def undeliverable(self) -> None:
        """The caller left before the answer was written."""
        assert self._reply is not None
        self._returns.begin(self._returns.give_back(self._call, self._reply))


def _granted(reply: Reply) -> list[_Lease]:
    if reply.status != 200:
        return []
    return (_read_packed if reply.content_type == MSGPACK else _read_json)(reply.body).jobs


def _release_of(claim: Call, granted: list[_Lease], claim_mark: bytes) -> Call | None:
    """The call that gives these jobs back with the rights of their caller; None where they may be somebody's."""
    request: wire.ClaimRequest = claim.body if claim.settled else CLAIMS.read(claim.raw, claim.packed_in)
    headers = {"Content-Type": "application/json"}
    if "Authorization" in claim.headers:
        headers["Authorization"] = claim.headers["Authorization"]
    if request.claim_id is not None:
        if not claim_mark:
            return None
        headers |= {UNLESS_REPEATED: claim_mark.decode("latin-1"), PASSED_ON_BY: "itself"}
    leases = [wire.EndingRequest(job.id, job.lease_token, "release") for job in granted]
    body = msgspec.json.encode(wire.EndingsRequest(request.worker, leases))
    return Call("", claim.query, body, claim.holder, (False, False), headers, stopping=claim.stopping)


def _is_over(content: bytes) -> bool:
    """Whether each lease is ended, or was not there any more."""
    return all(
        result.status == "ok" or (result.error is not None and result.error.code in _OVER)
        for result in _read_results(content).leases
    )
