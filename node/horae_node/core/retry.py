"""Back-off between attempts: exact integer arithmetic and a jitter that every node computes alike. Nothing else."""

from __future__ import annotations

from hashlib import blake2b

from horae_node.core.model import JobSpec

_HASH_BITS = 64


def backoff_ms(spec: JobSpec, *, failures: int, attempt: int) -> int:
    """Milliseconds to wait after failure number `failures` (>= 1): initial x factor^(failures-1), up to max, +-jitter.

    The jitter is spread evenly over [1-j, 1+j] by a hash of job and attempt: jobs that failed together do not come
    back together, and a replay gives the same moment. It is applied after the cap, or capped jobs would come together.
    """
    assert failures >= 1
    steps = failures - 1
    # One division at the end: rounding at each step would hold a short back-off at its first value for ever.
    grown: int = spec.retry_initial_ms * spec.retry_factor_milli**steps // 1000**steps
    base = min(grown, spec.retry_max_ms)
    spread = base * spec.retry_jitter_milli // 1000
    if not spread:
        return base
    seed = blake2b(b"%d\0%s" % (attempt, spec.id.encode()), digest_size=_HASH_BITS // 8).digest()
    return base - spread + (int.from_bytes(seed, "big") * (2 * spread + 1) >> _HASH_BITS)
