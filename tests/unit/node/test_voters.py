"""Who the members are, written down: as configured, or as they were changed; and which of the two is obeyed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.node.test_surroundings import config_of

from horae_node.errors import ConfigError
from horae_node.raft.port import Member, Roster
from horae_node.surroundings import require_surroundings
from horae_node.voters import VOTERS_FILE, read_members, read_voters, write_members, write_voters

N1, N2, N4 = (Member(name, f"{name}:1", f"http://{name}") for name in ("n1", "n2", "n4"))
BOOK = Roster(7, (N1, N2), (N4,), frozenset({"n3"}))


def test_nothing_is_known_before_the_first_start(tmp_path: Path) -> None:
    assert read_voters(tmp_path) is None
    assert read_members(tmp_path) is None


def test_configured_ids_are_no_roster(tmp_path: Path) -> None:
    write_voters(tmp_path, ["n1", "n2"])
    assert read_voters(tmp_path) == ["n1", "n2"]
    assert read_members(tmp_path) is None


def test_a_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_members(tmp_path, BOOK)
    assert read_members(tmp_path) == BOOK
    assert read_voters(tmp_path) == ["n1", "n2"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"at_index": -1, "voters": [], "learners": [], "removed": []}',
        '{"at_index": 18446744073709551616, "voters": [], "learners": [], "removed": []}',
        '{"at_index": 1, "voters": [["n1", "n1", "http://n1"]], "learners": [], "removed": []}',
        '{"at_index": 1, "voters": [["n1"]], "learners": [], "removed": []}',
    ],
)
def test_a_broken_roster_is_refused_with_the_fix(tmp_path: Path, text: str) -> None:
    (tmp_path / VOTERS_FILE).write_text(text)
    with pytest.raises(ConfigError, match="remove it, once `members` in the configuration"):
        read_members(tmp_path)


def test_a_flipped_bit_is_found_and_a_file_of_before_there_was_a_checksum_is_read(tmp_path: Path) -> None:
    write_members(tmp_path, BOOK)
    path = tmp_path / VOTERS_FILE
    whole = path.read_text()
    path.write_text(whole.replace('"at_index": 7', '"at_index": 71'))
    with pytest.raises(ConfigError, match=r"cannot be read .its checksum is another"):
        read_members(tmp_path)
    path.write_text(re.sub(r',\s*"crc32": [0-9]+', "", whole))
    assert read_members(tmp_path) == BOOK


def test_a_configuration_that_disagrees_is_reported_and_not_obeyed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path / "d")
    require_surroundings(config)
    write_members(config.data_dir, BOOK)
    require_surroundings(config)
    assert "members_not_as_configured" in caplog.text
    assert read_members(config.data_dir) == BOOK


def test_one_that_agrees_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(tmp_path / "d")
    require_surroundings(config)
    write_members(config.data_dir, Roster(7, config.members))
    require_surroundings(config)
    assert "members_not_as_configured" not in caplog.text
