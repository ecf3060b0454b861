"""The calls that change who is a member, and who leads.

Not here: which changes are allowed (`horae_node/membership.py`), how a new node asks for itself (`join.py`).
Next to read: `admin.py`.
"""

from __future__ import annotations

from typing import Final

from horae import wire
from horae_http import codec
from horae_http.answer import Answer
from horae_http.codec import BodyReader
from horae_http.routing import Call, Route
from horae_node.service import Service


async def add_member(service: Service, call: Call) -> Answer:
    call.holder.require_all_queues()
    standing = await service.add_member(call.body, round(call.query.wait_seconds * 1000))
    return codec.answer(200 if standing.standing == "voter" else 202, standing, call.packed_out)


async def remove_member(service: Service, call: Call) -> Answer:
    call.holder.require_all_queues()
    return codec.answer(200, await service.remove_member(call.item), call.packed_out)


async def move_member(service: Service, call: Call) -> Answer:
    call.holder.require_all_queues()
    return codec.answer(200, await service.move_member(call.item, call.body), call.packed_out)


async def hand_over(service: Service, call: Call) -> Answer:
    call.holder.require_all_queues()
    return codec.answer(200, await service.hand_over(call.body.node), call.packed_out)


_STANDING: Final[dict[int, type | None]] = {200: wire.MemberStanding}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/cluster/members",
        "addMember",
        "Add a node. 200 when it counts, 202 when it still catches up (it counts as soon as it has) or is not reached.",
        add_member,
        {200: wire.MemberStanding, 202: wire.MemberStanding},
        "admin",
        BodyReader(wire.MemberRequest).read,
        wire.MemberRequest,
        wire.AddQuery,
        waits=True,
        shed_last=True,
    ),
    Route(
        "DELETE",
        "/v1/cluster/members/{id}",
        "removeMember",
        "Remove a node for good: its id never comes back. A leader hands over first.",
        remove_member,
        _STANDING,
        "admin",
        shed_last=True,
    ),
    Route(
        "PATCH",
        "/v1/cluster/members/{id}",
        "moveMember",
        "The same node, with its data, is reached at other addresses.",
        move_member,
        _STANDING,
        "admin",
        BodyReader(wire.MoveRequest).read,
        wire.MoveRequest,
        shed_last=True,
    ),
    Route(
        "POST",
        "/v1/cluster/leader",
        "handOver",
        "Make this node the leader. 409 when it did not take over: then the old one leads on.",
        hand_over,
        {200: wire.LeaderView},
        "admin",
        BodyReader(wire.LeaderRequest).read,
        wire.LeaderRequest,
        shed_last=True,
    ),
)
