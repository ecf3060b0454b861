"""The ways a call can go: the machine's refusal is a value (`core.results.Rejected`); what is raised is here.

`Refused`: the rules said no, to the caller of the service. `NotApplied`: surely nothing happened, the caller may try
again as it likes. `OutcomeUnknown`: it may or may not take effect; repeat with the same key only. `Fatal`: an invariant
broke, the process ends (never caught but at the root).
"""

from __future__ import annotations


class NotApplied(Exception):
    """Definite: the command is not in the log and never will be. `code` is one of the contract's error codes."""

    def __init__(self, code: str, detail: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class OutcomeUnknown(Exception):
    """Unknown: the command was handed on and may still take effect. Retry with the same id, claim id or token."""


class Refused(Exception):
    """The rules refused the call; nothing changed. `code`: not_found | conflict | lease_lost | invalid | too_large |
    rate_limited.

    `pointer` names the offending field (`/run_at`), `""` when none does. `retry_after_ms`: when the rules may say yes.
    """

    def __init__(self, code: str, detail: str, pointer: str = "", *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.pointer = pointer
        self.retry_after_ms = retry_after_ms


class Fatal(Exception):
    """An invariant is broken or the disk failed: this process must end, loudly, before it does harm."""


class Outdated(Fatal):
    """A newer build wrote what this one finds: it must not guess. One line with the fix, exit code 2."""


class ConfigError(Exception):
    """Configuration or surroundings (directory, port) do not allow a start: one line with the fix, exit code 2."""


class Misfit(ConfigError):
    """A peer was configured with other members or restored from another backup, and this node has nothing of the
    cluster yet but what was restored: as if never started."""
