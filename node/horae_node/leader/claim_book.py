"""Claims that have a claim id, and so may be sent again: which calls of each are open, and which answers went out.

The jobs of a claim belong to all of its calls. They go back when it is known here that no answer with them was
delivered, and no call is open that may yet be given them; what is not known is left to the leases. Pure bookkeeping of
one reign. Not here: proposing, claims without an id. Next to read: `session.py`.
"""

from __future__ import annotations

from collections import OrderedDict

from horae_node.core.commands import ClaimJobs
from horae_node.core.results import Granted
from horae_node.leader.waiters import Grants, Waiter
from horae_node.shedding import shed

ANSWERS_REMEMBERED = 30_000
"""Answers with jobs, of which it may yet be heard that they were not delivered. Some 20 MB."""

CALLS_MAX = 100
"""Open calls of one claim: each outcome looks at all of them. A caller that gives up every second leaves 75, the
longest that a call may last."""

Key = tuple[str, str, tuple[str, ...]]
"""Worker, claim id, queues: what the machine knows a claim by."""


class RepeatableClaim:
    """One worker's claim id, for the same queues.

    `calls`: those that wait, or whose outcome is not known. `handed`: serials of the answers with its jobs that were
    delivered, or may have been. `lost`: jobs that no answer delivered, while calls are open. `kept`: answers are not
    all known here, by an earlier reign or because they were forgotten: leases decide. `given_up`: its jobs are on their
    way back. `left_over`: an answer had no room for some, and left them to an open call. All but `calls` are of the
    grant with that `token`.
    """

    __slots__ = ("answers", "calls", "given_up", "handed", "kept", "key", "left_over", "lost", "token")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.calls: list[Waiter] = []
        self.handed: list[int] = []
        self.answers = 0
        self.token = 0
        self.lost: Grants = ()
        self.kept = self.given_up = self.left_over = False

    def turn_to(self, token: int, *, kept: bool) -> None:
        """What is known is of this grant from now on."""
        self.token = token
        self.kept = kept
        self.given_up = self.left_over = False
        self.handed.clear()
        self.lost = ()


class ClaimBook:
    """One for a session; cleared with each reign. What a method returns as `Grants` is to be given back now."""

    def __init__(self) -> None:
        self._claims: dict[Key, RepeatableClaim] = {}
        self._answers: OrderedDict[int, RepeatableClaim] = OrderedDict()
        """By the serial of the call that was granted jobs: the oldest are forgotten first, never a claim that waits."""

    def __len__(self) -> int:
        return len(self._claims)

    def clear(self) -> None:
        """The reign is over: nothing is known any more."""
        self._claims.clear()
        self._answers.clear()

    def claim(self, command: ClaimJobs) -> RepeatableClaim:
        """Where to add a call. Raises: `NotApplied("rate_limited")` when `CALLS_MAX` of them are open."""
        key = (command.worker, command.claim_id, command.queues)
        claim = self._claims.get(key)
        if claim is None:
            claim = self._claims[key] = RepeatableClaim(key)
        elif len(claim.calls) >= CALLS_MAX:
            raise shed(f"{CALLS_MAX} calls with this claim id wait already", 1)
        return claim

    def others(self, waiter: Waiter) -> list[Waiter]:
        """The other open calls of its claim."""
        claim = waiter.claim
        return [] if claim is None else [call for call in claim.calls if call is not waiter]

    def matters_to_others(self, waiter: Waiter) -> bool:
        """Whether jobs of other calls go back, or may, once this one is over."""
        claim = waiter.claim
        return claim is not None and (len(claim.calls) > 1 or claim.lost != ())

    def is_granted(self, waiter: Waiter, granted: Granted) -> Grants:
        """Note what an entry granted it. What of that it may have: nothing of what is on its way back."""
        claim = waiter.claim
        if claim is None or not granted.grants or not self._knows(claim):
            return granted.grants
        token = granted.grants[0][1]
        if not granted.repeated:
            claim.turn_to(token, kept=False)
        elif token != claim.token:
            claim.turn_to(token, kept=True)  # who was answered with them nobody here knows
        elif claim.given_up:
            return ()
        if waiter.serial not in self._answers:
            claim.answers += 1
        self._answers[waiter.serial] = claim
        while len(self._answers) > ANSWERS_REMEMBERED:
            self._forget(*self._answers.popitem(last=False))
        return granted.grants

    def hand(self, waiter: Waiter) -> None:
        """Its caller is answered with what it was granted."""
        claim = waiter.claim
        if claim is not None and waiter.serial in self._answers:
            claim.handed.append(waiter.serial)
            claim.lost = ()

    def end(self, waiter: Waiter) -> Grants:
        """This call is over. A second word does nothing."""
        claim = waiter.claim
        if claim is None or waiter not in claim.calls or not self._knows(claim):
            return ()
        claim.calls.remove(waiter)
        if claim.calls:
            return ()
        lost, claim.lost = claim.lost, ()
        claim.given_up |= bool(lost) and not claim.handed
        self._drop_if_over(claim)
        return lost

    def lose(self, serial: int, grants: Grants) -> Grants:
        """The caller of that call did not get these jobs, its claim's: it was gone before it was answered, or before
        the answer was written. A second word changes nothing, and has the same answer."""
        claim = self._answers.get(serial)
        if claim is None or not grants or grants[0][1] != claim.token:
            return ()
        if serial in claim.handed:
            claim.handed.remove(serial)
        if claim.handed or claim.kept:
            return ()
        if claim.calls:
            claim.lost = tuple(dict.fromkeys(claim.lost + grants))
            return ()
        claim.given_up = True
        return grants

    def lose_rest(self, serial: int, rest: Grants) -> Grants:
        """The answer of that call has no room for these; its other jobs are in it."""
        claim = self._answers.get(serial)
        if claim is None or claim.kept or (claim.handed != [serial] and not claim.left_over):
            return ()  # whoever was answered before has them, or has given them back
        if claim.calls:
            claim.lost, claim.left_over = rest, True
            return ()
        return rest

    def _knows(self, claim: RepeatableClaim) -> bool:
        return self._claims.get(claim.key) is claim

    def _forget(self, serial: int, claim: RepeatableClaim) -> None:
        claim.answers -= 1
        if serial in claim.handed:
            claim.handed.remove(serial)
            claim.kept = True
        self._drop_if_over(claim)

    def _drop_if_over(self, claim: RepeatableClaim) -> None:
        if not claim.calls and not claim.answers and self._knows(claim):
            del self._claims[claim.key]
