"""Each key that a request accepts has a test that shows what it does: a new one without a row here fails."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from horae import wire

TESTS = Path(__file__).parents[1]

SHOWN_BY = {
    "SubmitRequest": {
        "task": "test_a_life",
        "payload": "test_the_service_gets_compact_json_whatever_the_encoding",
        "queue": "test_queues_are_served_in_the_order_named",
        "id": "test_submit_is_idempotent_by_id",
        "run_at": "test_delay_and_run_at",
        "delay_seconds": "test_delay_and_run_at",
        "priority": "test_order_is_priority_then_due_then_submitted",
        "max_attempts": "test_failures_are_retried_until_the_job_is_dead",
        "retry": "test_back_off_waits_and_grows",
        "lease_seconds": "test_the_lease_is_the_claims_or_the_jobs",
        "timeout_seconds": "test_an_attempt_that_runs_too_long_is_reaped",
        "max_lost": "test_lost_too_often_is_poison",
        "expires_at": "test_a_last_moment_expires_what_never_started",
        "ttl_seconds": "test_time_to_live_expires_what_never_started",
        "unique_key": "test_unique_key_merges_while_the_job_lives",
        "concurrency_key": "test_jobs_of_one_key_run_one_at_a_time_whoever_claims",
        "tags": "test_jobs_are_listed_by_task_tag_and_schedule",
        "retention_seconds": "test_finished_jobs_go_after_their_retention",
        "after": "test_a_job_runs_when_all_that_it_waits_for_have_succeeded",
        "on_failure": "test_a_failure_cancels_who_waits_and_says_why",
        "then": "test_a_success_brings_forth_the_next_job_once",
    },
    "Retry": {
        "initial_seconds": "test_back_off_waits_and_grows",
        "factor": "test_it_grows_by_the_factor_up_to_the_cap",
        "max_seconds": "test_it_grows_by_the_factor_up_to_the_cap",
        "jitter": "test_it_stays_within_the_jitter",
    },
    "BatchRequest": {
        "jobs": "test_batch_gives_each_job_its_own_result",
        "atomic": "test_atomic_batch_is_all_or_none",
    },
    "ClaimRequest": {
        "worker": "test_who_works_is_told_by_any_node",
        "queues": "test_queues_are_served_in_the_order_named",
        "max_jobs": "test_max_jobs_holds_over_all_queues",
        "wait_seconds": "test_a_waiting_claim_is_woken",
        "lease_seconds": "test_the_lease_is_the_claims_or_the_jobs",
        "claim_id": "test_claim_id_repeated_gets_the_same_jobs",
    },
    "LeaseBeat": {
        "job_id": "test_a_heartbeat_keeps_the_lease",
        "lease_token": "test_tokens_that_do_not_hold",
        "progress": "test_a_life",
    },
    "HeartbeatRequest": {
        "worker": "test_who_works_is_told_by_any_node",
        "leases": "test_a_heartbeat_keeps_the_lease",
    },
    "CompleteRequest": {
        "lease_token": "test_tokens_that_do_not_hold",
        "result": "test_the_result_is_kept",
    },
    "FailRequest": {
        "lease_token": "test_tokens_that_do_not_hold",
        "error": "test_errors_tell_the_attempts_in_order",
        "retry": "test_fail_without_retry_and_with_its_own_delay",
        "retry_in_seconds": "test_fail_without_retry_and_with_its_own_delay",
    },
    "ErrorBody": dict.fromkeys(("type", "message", "traceback"), "test_errors_tell_the_attempts_in_order"),
    "ReleaseRequest": {
        "lease_token": "test_tokens_that_do_not_hold",
        "delay_seconds": "test_release_counts_no_attempt",
        "progress": "test_release_counts_no_attempt",
    },
    "EndingRequest": {
        **dict.fromkeys(
            ("job_id", "lease_token", "outcome", "result", "error", "retry"), "test_many_endings_in_one_call"
        ),
        **dict.fromkeys(
            ("retry_in_seconds", "delay_seconds", "progress"), "test_endings_in_one_call_say_all_that_single_ones_do"
        ),
    },
    "EndingsRequest": {
        "worker": "test_who_works_is_told_by_any_node",
        "leases": "test_many_endings_in_one_call",
    },
    "QueuePatch": {
        "paused": "test_a_paused_queue_waits_and_a_resume_wakes_who_waits",
        "max_running": "test_no_more_run_than_may",
        "max_running_per_key": "test_a_limit_raised_is_live_at_once",
        "rate_per_second": "test_what_a_rate_holds_up_comes_by_itself",
        "burst": "test_a_bucket_begins_full_and_fills_with_the_lease_clock",
        "max_depth": "test_past_its_depth_a_submit_is_rate_limited",
    },
    "JobFilter": dict.fromkeys(("queue", "task", "tag"), "test_a_filter_means_what_has_all_that_is_given"),
    "CancelFilter": {"state": "test_a_cancel_takes_all_that_is_not_finished"},
    "RequeueFilter": {"state": "test_a_requeue_leaves_what_was_cancelled_unless_it_is_named"},
    "BulkRequest": dict.fromkeys(("limit", "cursor"), "test_pages_change_each_job_once"),
    "CancelManyRequest": {"filter": "test_a_filter_means_what_has_all_that_is_given"},
    "RequeueManyRequest": {"filter": "test_a_filter_means_what_has_all_that_is_given"},
    "ScheduleRule": {
        "cron": "test_each_moment_comes_to_what_the_policy_says",
        "every_seconds": "test_an_interval_is_anchored",
        "timezone": "test_two_more_changes_for_ramadan",
        "jitter_seconds": "test_jitter_stays_before_the_next_and_is_spread",
        "dst_gap": "test_or_is_skipped_and_told",
        "dst_repeat": "test_a_local_time_that_comes_twice",
        "starts_at": "test_bounds_are_inclusive_and_hold_for_both_kinds",
        "ends_at": "test_bounds_are_inclusive_and_hold_for_both_kinds",
    },
    "ScheduleTerms": {
        **dict.fromkeys(
            ("missed", "catch_up_seconds", "max_catch_up", "grace_seconds"),
            "test_each_moment_comes_to_what_the_policy_says",
        ),
        "overlap": "test_overlap_is_kept",
        "paused": "test_a_pause_lets_triggers_go_by_and_says_so",
    },
    "ScheduleRequest": {"job": "test_each_trigger_makes_one_job_over_a_change_of_leader"},
    "PreviewRequest": {
        "id": "test_a_preview_is_for_the_id_that_it_names",
        **dict.fromkeys(("n", "from", "job"), "test_a_preview_shows_what_a_put_would_say"),
    },
    "BackfillRequest": dict.fromkeys(("from", "to"), "test_a_job_by_hand_and_triggers_after_the_fact"),
    "TriggerRequest": {"id": "test_a_job_by_hand_of_the_callers_own_id_is_made_once"},
    "ReadQuery": {"consistency": "test_local_reads_say_how_old_they_are"},
    "AddQuery": {"wait_seconds": "test_a_node_is_added"},
    "BackupQuery": {
        "consistency": "test_whoever_is_asked_gives_all_that_was_acknowledged_before",
        "after": "test_its_pieces_are_a_whole_snapshot_and_no_file_is_left",
    },
    "JobQuery": {"wait_seconds": "test_a_read_waits_for_the_end"},
    "JobsQuery": {
        **dict.fromkeys(("queue", "state", "limit", "cursor"), "test_pages_together_are_the_whole_list"),
        **dict.fromkeys(("task", "tag", "schedule_id"), "test_jobs_are_listed_by_task_tag_and_schedule"),
        **dict.fromkeys(("created_from", "created_before"), "test_the_client_joins_jobs_and_lists_them"),
    },
    "SchedulesQuery": dict.fromkeys(("limit", "cursor"), "test_schedules_of_a_page_are_as_many_as_fit"),
    "TriggersQuery": {
        **dict.fromkeys(("from", "to"), "test_a_job_by_hand_and_triggers_after_the_fact"),
        **dict.fromkeys(("limit", "cursor"), "test_the_ledger_comes_in_pages"),
    },
    "NextQuery": dict.fromkeys(("n", "from"), "test_what_comes_next_is_shown_with_what_is_odd"),
    "PreviewQuery": dict.fromkeys(("n", "from"), "test_a_preview_shows_what_a_put_would_say"),
    "ResumeQuery": {"missed": "test_a_resume_makes_up_for_all_that_went_by_and_passes_over_nothing"},
    "WorkersQuery": dict.fromkeys(("limit", "cursor"), "test_workers_are_listed"),
    "QueuesQuery": dict.fromkeys(("limit", "cursor"), "test_a_page_of_queues_takes_a_bounded_number_of_looks"),
    "EventsQuery": {
        "queue": "test_a_follower_tells_what_the_leader_was_asked",
        "types": "test_a_follower_tells_what_the_leader_was_asked",
        "after": "test_a_cut_stream_goes_on_at_any_other_node",
    },
    "MemberRequest": dict.fromkeys(
        ("node", "raft_address", "http_url"), "test_three_grow_to_five_and_shrink_back_under_load"
    ),
    "MoveRequest": dict.fromkeys(("raft_address", "http_url"), "test_the_same_node_at_a_new_address"),
    "LeaderRequest": {"node": "test_the_lead_is_handed_over_under_load"},
}
"""Request -> key -> the test that shows its effect. Keys that a request inherits are those of its base."""


def requests() -> list[type[wire.Request]]:
    shapes = [shape for _, shape in inspect.getmembers(wire, inspect.isclass) if issubclass(shape, wire.Request)]
    return [shape for shape in shapes if shape is not wire.Request]


def rows_of(shape: type[wire.Request]) -> dict[str, str]:
    rows: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        rows |= SHOWN_BY.get(base.__name__, {})
    return rows


def written_tests() -> set[str]:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    return set(re.findall(r"^(?: {4})?(?:async )?def (test_\w+)", "\n".join(sources), re.MULTILINE))


@pytest.mark.parametrize("shape", requests(), ids=lambda shape: shape.__name__)
def test_each_key_has_its_test(shape: type[wire.Request]) -> None:
    keys = {field.encode_name for field in msgspec.structs.fields(shape)}
    rows = rows_of(shape)
    assert keys - rows.keys() == set()
    assert set(SHOWN_BY.get(shape.__name__, {})) <= keys


def test_each_named_test_is_there() -> None:
    named = {test for rows in SHOWN_BY.values() for test in rows.values()}
    assert named - written_tests() == set()
    assert SHOWN_BY.keys() <= {shape.__name__ for shape in requests()}
