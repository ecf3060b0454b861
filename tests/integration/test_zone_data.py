"""Three nodes that see three sets of zone data lead one after the other: no trigger comes twice, none goes unheard, and
a schedule beyond one's data holds up no other."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.helpers.cluster import Cluster
from tests.helpers.story import metric, require_problem
from tests.helpers.triggers import SECOND, Schedule, gaps, lead, moments
from tests.helpers.zone_data import fixed, make_package

pytestmark = pytest.mark.cluster

CITY = "Test/City"
EACH_SECOND = f"* * {','.join(map(str, range(24)))} * * *"
"""At fixed local times, since the hours are a list."""


async def test_leaders_with_other_zone_data(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    two, three, without = cluster.nodes
    for node, data in ((two, fixed(2)), (three, fixed(3)), (without, None)):
        home = make_package(tmp_path / "zones" / node.name, {CITY: data}, f"2030.{node.name[1:]}")
        node.environ["PYTHONPATH"] = str(home)
    async with cluster:
        api = cluster.api
        city, other = Schedule(api, "city"), Schedule(api, "other")
        await lead(cluster, two)
        body = {"cron": EACH_SECOND, "timezone": CITY, "missed": "all", "grace_seconds": 0, "job": {"task": "t"}}
        (await api.call("PUT", "/v1/schedules/city", body, url=without.url)).expect(201)  # the leader knows the zone
        await other.put(every_seconds=1)
        assert (await city.read())["error"] is None
        local = (await api.send("GET", f"{without.url}/v1/schedules/city?consistency=local")).expect(200)
        assert "'Test/City' is unknown in tzdata 2030.3" in local["error"]
        await city.ledger_of(2)

        await lead(cluster, without)
        seen = len(await other.ledger())
        assert "unknown in tzdata" in (await city.read())["error"]
        refused = await api.call("PUT", "/v1/schedules/more", body)
        require_problem(refused, 422, "invalid")
        assert refused.body["errors"][0]["pointer"] == "/timezone"
        assert gaps(await other.ledger_of(seen + 3)) == {SECOND}
        require_problem(await api.call("PUT", "/v1/schedules/city", body | {"timezone": "UTC"}), 409, "conflict")
        require_problem(await api.call("GET", "/v1/schedules/city/next"), 409, "conflict")
        settled = len(await city.ledger())
        assert await metric(cluster, without, "horae_schedules_unreckonable") == 1
        assert await metric(cluster, without, 'horae_tzdata_info{version="2030.3"}') == 1
        assert "schedule_cannot_be_reckoned" in without.log_text()

        await lead(cluster, three)  # what went by has been missed, and is made up for
        lines = await city.ledger_of(settled + 6)
        assert gaps(lines) == {SECOND}
        assert {line["outcome"] for line in lines} == {"ran"}
        assert any("late" in line.get("why", "") for line in lines[settled:])

        await lead(cluster, two)  # an hour of local times would come once more
        seen = len(await other.ledger())
        assert gaps(await other.ledger_of(seen + 3)) == {SECOND}
        lines = await city.ledger()
        assert gaps(lines) == {SECOND}
        assert await city.jobs() == [line["job_id"] for line in lines]
        view = await city.read()
        until_next = datetime.fromisoformat(view["next_nominal_time"]) - moments(lines)[-1]
        assert until_next == timedelta(hours=1) + SECOND
        for name in ("city", "other"):
            (await api.call("DELETE", f"/v1/schedules/{name}")).expect(204)
        await cluster.finish()
