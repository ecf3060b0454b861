"""A crontab is read as cron reads it; what has no meaning here is said, with the line and why."""

from __future__ import annotations

import pytest

from horae.crontab import MAIL, REBOOT, Entry, read_crontab

TEXT = """\
# m h dom mon dow command
SHELL=/bin/bash
PATH = "/usr/local/bin:/usr/bin"
MAILTO=ops@example.org

*/5 * * * *   /usr/local/bin/poll --quiet
  0 2 * * 1-5\tbackup.sh %first line%second \\% line
CRON_TZ=Europe/Berlin
@DAILY  report > /dev/null 2>&1
@reboot start-me
30 4 1 jan
five fields no command
MAILTO=""
"""


def test_lines_are_taken_with_what_stands_above_them() -> None:
    entries, left = read_crontab(TEXT)
    env = {"SHELL": "/bin/bash", "PATH": "/usr/local/bin:/usr/bin"}
    assert entries == [
        Entry(6, "*/5 * * * *", "/usr/local/bin/poll --quiet", env=env),
        Entry(7, "0 2 * * 1-5", "backup.sh", stdin="first line\nsecond % line\n", env=env),
        Entry(9, "@daily", "report > /dev/null 2>&1", "Europe/Berlin", env=env),
    ]
    assert [(one.line, one.why, one.taken) for one in left] == [
        (4, MAIL, True),
        (10, REBOOT, False),
        (11, "it is no setting, and not 5 fields with a command behind them", False),
        (12, "it is no setting, and not 5 fields with a command behind them", False),
    ]


def test_a_system_crontab_has_a_user_before_the_command() -> None:
    (entry,), left = read_crontab(
        "17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly\n@hourly", system=True
    )
    assert (entry.user, entry.command) == ("root", "cd / && run-parts --report /etc/cron.hourly")
    assert [one.line for one in left] == [2]
    assert entry.payload() == {"command": entry.command, "user": "root"}


def test_ids_are_those_of_what_is_run_and_when() -> None:
    def of(text: str) -> str:
        (entry,), _ = read_crontab(text)
        return entry.schedule_id("cron")

    assert of("0 2 * * * /opt/backup.sh --all").startswith("cron-opt-backup-sh-all-")
    assert of("0 2 * * * x") == of("# above\n\n0  2 * * *   x")
    assert len({of(text) for text in ("0 2 * * * x", "0 3 * * * x", "0 2 * * * y", "0 2 * * * x%z")}) == 4
    assert of("0 2 * * * %") != of("0 2 * * * /")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "A=1\nB = 'two words'\n"])
def test_what_names_no_moment_is_nothing(text: str) -> None:
    assert read_crontab(text) == ([], [])


def test_settings_hold_from_where_they_stand() -> None:
    entries, _ = read_crontab(
        "0 1 * * * a\nX=1\n0 2 * * * b\nX=2\nCRON_TZ=Asia/Tokyo\n0 3 * * * c\nCRON_TZ=\n0 4 * * * d"
    )
    assert [entry.env for entry in entries] == [{}, {"X": "1"}, {"X": "2"}, {"X": "2"}]
    assert [entry.zone for entry in entries] == [None, None, "Asia/Tokyo", None]
