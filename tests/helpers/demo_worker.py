"""A worker as its own process, on the SDK, for tests that kill it: says that a job has begun, then never ends it.

`python demo_worker.py URL QUEUE FILE`: FILE gets one line `job id, token` when the job has begun.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from horae import Context, Worker


def main(url: str, queue: str, begun: Path) -> None:
    worker = Worker([url], queues=[queue])

    @worker.task("endless")
    async def endless(ctx: Context, payload: Any) -> None:
        with begun.open("a", encoding="utf-8") as lines:
            lines.write(f"{ctx.job_id} {ctx.lease_token}\n")
        await asyncio.Event().wait()

    worker.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
