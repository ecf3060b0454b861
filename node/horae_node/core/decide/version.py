"""Which rules hold: the machine's version, raised when all members know the next one, and never lowered.

That all know it is the leader's to find out (`leader/upgrade.py`). Here is what no leader may be trusted with: that it
does not go back, and that a build which does not know the version goes no further.
"""

from __future__ import annotations

from horae_node.core.changes import Decision, VersionRaised
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.context import Context
from horae_node.core.model import UnknownVersion
from horae_node.core.results import Done, Rejected


def decide_raise_version(ctx: Context, command: RaiseMachineVersion) -> Decision:
    """Raises: `UnknownVersion`, before anything is changed by this command."""
    version = command.version
    if version < ctx.version:
        return Rejected("conflict", f"the machine is of version {ctx.version} and never goes back to {version}"), ()
    if version == ctx.version:
        return Done(0, True), ()
    if version > ctx.known.newest:
        raise UnknownVersion(version)
    return Done(), (VersionRaised(version),)
