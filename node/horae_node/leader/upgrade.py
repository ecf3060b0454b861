"""The last step of an upgrade, taken by the cluster itself: the machine's version rises once every member can follow.

A build knows a range of machine versions, and every node says its own in its answers to the leader. Once all members,
learners too, say on a connection that is up that they know a newer version than the state's, the leader proposes the
newest that all know. A member that is away, or too old, holds it up: a log line names it.
Not here: what a version changes, and that it never goes back (`core/decide/version.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from horae_node.applier import Applier
from horae_node.clock import Clock
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.model import Versions
from horae_node.leader.session import LeaderSession
from horae_node.logs import get_log
from horae_node.proposer import Proposer
from horae_node.raft.port import Raft

AGAIN_MS: Final = 10_000
"""Before a raise is proposed anew that nothing came of: a repeat is harmless, and a queue of them would not be."""

log = get_log("upgrade")


class Upgrade:
    """One for a node; proposes on the leader only. The owner calls `run_once` about once a second."""

    def __init__(
        self, *, node_id: str, raft: Raft, applier: Applier, proposer: Proposer, session: LeaderSession, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._raft = raft
        self._applier = applier
        self._proposer = proposer
        self._session = session
        self._clock = clock
        self._proposed: tuple[int, int] | None = None
        self._again_at_ms = 0
        self._version = applier.meta().machine_version
        self._held_by: tuple[str, ...] = ()

    def run_once(self) -> None:
        """Look once: tell of a raise that was applied here, and propose the next when this node leads and all can."""
        version = self._applier.meta().machine_version
        if version != self._version:
            self._version = version
            log.event("machine_version_raised", version=version)
        if not self._session.open or self._applier.known_versions.newest == version:
            self._held_by = ()
            return
        known = self._known_by_members()
        self._tell_waits(version, known)
        target = _newest_common(known.values(), version)
        if target is not None:
            self._propose(target)

    def _propose(self, target: int) -> None:
        now_ms, proposed = self._clock.monotonic_ms(), (self._session.epoch, target)
        if proposed != self._proposed or now_ms >= self._again_at_ms:
            self._proposed = proposed
            self._again_at_ms = now_ms + AGAIN_MS
            log.event("machine_version_proposed", version=target)
            self._proposer.send([RaiseMachineVersion(target)])

    def _tell_waits(self, version: int, known: dict[str, Versions | None]) -> None:
        held_by = tuple(name for name, versions in known.items() if versions is None or versions.newest <= version)
        if held_by != self._held_by:
            self._held_by = held_by
            if held_by:
                log.event("machine_version_waits", version=version, nodes=",".join(held_by))

    def _known_by_members(self) -> dict[str, Versions | None]:
        """What each member of the present roster says; this node's own is its build's."""
        peers = self._raft.status().peers
        known: dict[str, Versions | None] = {self._node_id: self._applier.known_versions}
        for member in self._raft.roster.members:
            if member.node_id != self._node_id:
                peer = peers.get(member.node_id)
                said = peer.known_versions if peer is not None and peer.connected else None
                known[member.node_id] = None if said is None else Versions(*said)
        return known


def _newest_common(known: Collection[Versions | None], version: int) -> int | None:
    """The newest version that every member knows; None when there is none above the state's `version`."""
    said = [versions for versions in known if versions is not None]
    if len(said) < len(known):
        return None
    newest = min(versions.newest for versions in said)
    return newest if newest > version and newest >= max(versions.oldest for versions in said) else None
