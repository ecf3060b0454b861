"""Bearer tokens: who a caller is, what it may do, and which queues it is held to.

A token is known by its SHA-256 only; the comparison is over digests, so its time tells nothing of a token. The role
`admin` includes the others. Without tokens nothing is checked (`config` then binds loopback only). Not here: which role
a call needs (the route tables). Next to read: `app.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

from horae.wire import FieldError
from horae_http.errors import Failure
from horae_node.config import TokenRule

CHALLENGE: Final = b'WWW-Authenticate: Bearer realm="horae"\r\n'


class Holder(NamedTuple):
    """What a token allows. `queues`: None for all."""

    roles: frozenset[str]
    queues: frozenset[str] | None

    def require_queue(self, queue: str, pointer: str = "") -> None:
        """Raises: `Failure("forbidden")` when the token is held to other queues."""
        if self.queues is not None and queue not in self.queues:
            why = f"the token is not for the queue {queue!r}"
            raise Failure("forbidden", f"{pointer}: {why}" if pointer else why, [FieldError(pointer, why)])

    def require_all_queues(self) -> None:
        """Raises: `Failure("forbidden")` when the token is held to some queues."""
        if self.queues is not None:
            raise Failure("forbidden", "this concerns every queue; the token is held to some")


EVERYBODY: Final = Holder(frozenset({"read", "submit", "work", "admin"}), None)
"""Who calls when no tokens are configured."""


class Tokens:
    """The tokens of a node."""

    def __init__(self, rules: Iterable[TokenRule]) -> None:
        self._holders = {bytes.fromhex(rule.token_sha256): _holder(rule) for rule in rules}

    def require(self, authorization: str | None, role: str) -> Holder:
        """The caller, known and with this role. Raises: `Failure` (`unauthenticated`, `forbidden`)."""
        holder = self._find(authorization)
        if holder is None:
            detail = "no bearer token was sent" if authorization is None else "the bearer token is not known"
            raise Failure("unauthenticated", detail, header_lines=CHALLENGE)
        if role not in holder.roles:
            raise Failure("forbidden", f"the token has not the role `{role}`")
        return holder

    def _find(self, authorization: str | None) -> Holder | None:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, holder in self._holders.items():  # all of them, always: a handful
            if compare_digest(known, digest):
                found = holder
        return found


def _holder(rule: TokenRule) -> Holder:
    roles = EVERYBODY.roles if "admin" in rule.roles else frozenset(rule.roles)
    return Holder(roles, None if rule.queues is None else frozenset(rule.queues))
