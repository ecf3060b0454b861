"""The node's configuration: every key once, with its limits and the reason for its default.

A value comes from a flag, else the environment, else the file, else the default. It is read once, checked whole, and
frozen. What is wrong is refused by name with the fix (`ConfigError`, one line). Not here: the clock, the disk but for
the file itself, any wiring. `docs/generated/config.md` is `render_docs()`, compared by a test.
Next to read: `KEYS` below, then `runtime.py`.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from horae_node.errors import ConfigError
from horae_node.raft.port import Member

ROLES: Final = ("read", "submit", "work", "admin")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
MEMBER_COUNTS: Final = (1, 3, 5, 7)
ENV_PREFIX: Final = "HORAE_"
ENV_OF_OTHERS: Final = frozenset({"HORAE_URL", "HORAE_TOKEN", "HORAE_CONFIG"})
"""Variables of the same prefix that are not keys: the client's two, and the place of the file."""

_HOST = re.compile(r"[A-Za-z0-9_.:%-]+")
"""Of names and of IPv6 addresses."""
_BROADCAST = ipaddress.ip_address("255.255.255.255")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PUBLISHED: Final = {
    "e2186dbdb1bb4193608605e84f33208765b5693b55edd4f730a719a100eeea6f": "the word change-me",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "an empty text",
}
"""Digests of no secret: an example's that was left in, and that of a variable that was not set."""


class TokenRule(NamedTuple):
    """Who may do what: the SHA-256 (lower-case hex) of a bearer token, its roles, its queues (None: every queue)."""

    token_sha256: str
    roles: tuple[str, ...]
    queues: tuple[str, ...] | None


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A checked configuration. `members` holds every voter, this node included, sorted by id; with `join` this node
    alone: the others are those of the cluster that it joins."""

    node_id: str
    data_dir: Path
    members: tuple[Member, ...]
    cluster: str
    http_listen: Address
    http_advertise: str
    raft_listen: Address
    heartbeat_ms: int
    election_min_ms: int
    election_max_ms: int
    fallback_ms: int
    state_commit_interval_ms: int
    state_commit_commands: int
    advance_limit: int
    log_keep_entries: int
    log_keep_bytes: int
    stop_grace_ms: int
    tokens: tuple[TokenRule, ...]
    log_level: str
    join: tuple[str, ...] = ()
    """URLs of nodes of the cluster to become a member of."""
    events_kept: int = 50_000

    @property
    def own(self) -> Member:
        """This node's own entry of `members`."""
        return next(member for member in self.members if member.node_id == self.node_id)


@dataclass(frozen=True, slots=True)
class Key:
    """One key: how a given value is read (`parse` raises ValueError with the fix) and why the default is what it is."""

    name: str
    parse: Callable[[Any], Any]
    form: str
    default: Any
    """What a value of the file would be; None: required, or computed as `reason` says."""
    reason: str
    required: bool = False

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def parse_address(given: Any) -> Address:
    """`host:port` or `[v6]:port`. Raises: ValueError with the fix."""
    host, colon, port_text = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not colon or not port_text.isascii() or not port_text.isdigit():
        raise ValueError(f"must be host:port, such as 127.0.0.1:7070, not {given!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address is written in brackets, such as [::1]:7070, not {given!r}")
    if not host or any(c.isspace() or c in "/@" for c in host):
        raise ValueError(f"must name a host, such as 127.0.0.1:7070, not {given!r}")
    _require_host(host)
    if len(port_text) > 5 or not 1 <= int(port_text) <= 65535:
        raise ValueError(f"the port must be between 1 and 65535, not {port_text}")
    return Address(host, int(port_text))


def parse_peer_address(given: Any) -> Address:
    """As `parse_address`, of another node: not to bind, but to reach. Raises: ValueError with the fix."""
    address = parse_address(given)
    _require_reachable(address.host)
    return address


def _require_host(host: str) -> None:
    """One that any program can be told, in a header too. Raises: ValueError with the fix."""
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"must name a host, and {host!r} cannot be one") from None
    if host.isascii() and _HOST.fullmatch(host) is None:
        raise ValueError(f"must name a host, and {host!r} cannot be one")
    if not host.isascii():
        raise ValueError(f"must name its host in ASCII: write {host!r} as {name}")


def _require_reachable(host: str) -> None:
    ip = _ip_of(host)
    if ip is None:
        return  # a name
    if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
        raise ValueError(
            f"must be an address that others reach, and nobody is reached at {host}; bind with raft_listen"
        )


def _ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """As the system's resolver reads it, to which `0` and `0x0` are addresses as well; None for a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
        except OSError:
            return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def parse_url(given: Any) -> str:
    """An http(s) base URL without path, as `http://host:port`. Raises: ValueError with the fix."""
    problem = f"must be a URL such as http://10.0.0.1:7070, not {given!r}"
    if not isinstance(given, str):
        raise ValueError(problem)
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        raise ValueError(problem) from None
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or any(c.isspace() for c in given):
        raise ValueError(problem)
    if port == 0:
        raise ValueError(f"the port must be between 1 and 65535, not 0, in {given!r}")
    _require_host(parts.hostname)
    if not given.isprintable():
        raise ValueError(problem)
    _require_reachable(parts.hostname)
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(host: str) -> bool:
    """Whether what listens on `host` is reached from this machine only. A name other than localhost is taken as not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def parse_name(given: Any) -> str:
    """The id of a node, or a cluster's name. Raises: ValueError with the fix."""
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise ValueError(
            f"must be a name of 1 to 63 letters, digits, dots, dashes or underscores, such as n1, not {given!r}"
        )
    return given


def _path(given: Any) -> Path:
    if not isinstance(given, str) or not given or "\0" in given:
        raise ValueError(f"must be the path of a directory, not {given!r}")
    return Path(given)


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def parse(given: Any) -> int:
        if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 19:
            given = int(given)
        if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
            raise ValueError(f"must be a whole number between {least} and {most}, not {given!r}")
        return given

    return parse


def _level(given: Any) -> str:
    if given not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}, not {given!r}")
    return str(given)


def _members(given: Any) -> dict[str, dict[str, str]]:
    """The table of the file, or its text form `n1=10.0.0.1:7071@http://10.0.0.1:7070,n2=…`."""
    if isinstance(given, str):
        given = _members_of_text(given)
    if not isinstance(given, dict) or not given:
        raise ValueError(
            'must be a table such as members.n1 = { raft = "10.0.0.1:7071", http = "http://10.0.0.1:7070" }'
        )
    for node_id, entry in given.items():
        parse_name(node_id)
        if not isinstance(entry, dict):
            raise ValueError(f'{node_id} must be a table such as {{ raft = "10.0.0.1:7071", http = "http://…" }}')
        for key in entry:
            if key not in ("raft", "http"):
                raise ValueError(f"{node_id} has the unknown key {key!r}: known are raft and http")
    return given


def _members_of_text(text: str) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        node_id, equals, rest = item.partition("=")
        if not equals:
            raise ValueError(f"must be written as n1=10.0.0.1:7071@http://10.0.0.1:7070,n2=…, not {item!r}")
        if node_id in table:
            raise ValueError(f"names {node_id} twice")
        raft, _, url = rest.partition("@")
        table[node_id] = {"raft": raft} | ({"http": url} if url else {})
    return table


def _urls(given: Any) -> tuple[str, ...]:
    """The list of the file, or its text form with commas."""
    if isinstance(given, str):
        given = [url.strip() for url in given.split(",") if url.strip()]
    if not isinstance(given, list):
        raise ValueError('must be a list of URLs such as ["http://10.0.0.1:7070"]')
    return tuple(parse_url(url) for url in given)


def _tokens(given: Any) -> tuple[TokenRule, ...]:
    """The list of tables of the file, or the same as JSON text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise ValueError('must be JSON such as [{"token_sha256": "…", "roles": ["submit"]}]') from None
    if not isinstance(given, list):
        raise ValueError("must be a list of tables: [[tokens]] with token_sha256, roles and, if held to some, queues")
    rules = tuple(_token(position, entry) for position, entry in enumerate(given))
    if len({rule.token_sha256 for rule in rules}) < len(rules):
        raise ValueError("names one token_sha256 twice: join their roles")
    return rules


def _token(position: int, entry: Any) -> TokenRule:
    where = f"entry {position + 1}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be a table with token_sha256 and roles")
    for key in entry:
        if key not in ("token_sha256", "roles", "queues"):
            raise ValueError(f"{where} has the unknown key {key!r}: known are token_sha256, roles and queues")
    digest = entry.get("token_sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ValueError(f"{where}: token_sha256 must be 64 lower-case hex digits: printf %s TOKEN | sha256sum")
    if digest in _PUBLISHED:
        raise ValueError(f"{where}: token_sha256 is that of {_PUBLISHED[digest]}, which everybody knows: make your own")
    roles = entry.get("roles")
    if not isinstance(roles, list) or not roles or any(role not in ROLES for role in roles):
        raise ValueError(f"{where}: roles must be a list of {', '.join(ROLES)}, not {roles!r}")
    queues = entry.get("queues")
    if queues is not None and (not isinstance(queues, list) or not queues or any(type(q) is not str for q in queues)):
        raise ValueError(f"{where}: queues must be a list of queue names; leave it out for every queue")
    return TokenRule(digest, tuple(roles), None if queues is None else tuple(queues))


def _whole(name: str, default: int, least: int, most: int, reason: str) -> Key:
    return Key(name, _integer(least, most), f"{least} to {most}", default, reason)


KEYS: Final[tuple[Key, ...]] = (
    Key("node_id", parse_name, "name", None, "a name, not an address: the node may come back elsewhere under it", True),
    Key("data_dir", _path, "directory", None, "where acknowledged work lives is the operator's to decide", True),
    Key(
        "members",
        _members,
        "table of id = { raft = host:port, http = URL }; as text id=host:port@URL,…",
        None,
        "every voter, this node too: a node that knew no others would acknowledge without them; required without join",
    ),
    Key(
        "join",
        _urls,
        "list of URLs; as text URL,…",
        [],
        "nodes of a running cluster, which takes this one in; an admin's token in HORAE_TOKEN where it has tokens",
    ),
    Key("cluster", parse_name, "name", "horae", "nodes of another name are refused; one cluster needs no other"),
    Key("http_listen", parse_address, "host:port", "127.0.0.1:7070", "loopback: open to others only with tokens"),
    Key("http_advertise", parse_url, "URL", None, "own http URL of members, else http:// and http_listen"),
    Key("raft_listen", parse_address, "host:port", None, "own raft address of members"),
    _whole("heartbeat_ms", 60, 10, 10_000, "six beats within the shortest election time-out; costs 17 frames/s a peer"),
    _whole(
        "election_min_ms", 400, 50, 60_000, "a pause of the process or a slow sync under it deposes no healthy leader"
    ),
    _whole(
        "election_max_ms", 800, 50, 60_000, "spread over twice the least: few split votes, and serving again within 2 s"
    ),
    _whole("fallback_ms", 800, 50, 60_000, "a cut-off leader steps down about when the others have elected anew"),
    _whole("state_commit_interval_ms", 1_000, 10, 60_000, "a crash replays at most about this much of the log"),
    _whole("state_commit_commands", 5_000, 1, 1_000_000, "bounds the replay, and what one commit writes, under load"),
    _whole(
        "advance_limit", 1_000, 1, 100_000, "due work done in one entry: keeps it well under a 50 ms stall of the loop"
    ),
    _whole(
        "log_keep_entries", 50_000, 1_000, 100_000_000, "a follower that was away for minutes catches up by the log"
    ),
    _whole("log_keep_bytes", 64 << 20, 1 << 20, 1 << 40, "kept entries are also held in memory: bounds what they take"),
    _whole(
        "stop_grace_ms", 5_000, 0, 600_000, "answers under way end well within it; supervisors kill after 10 s or more"
    ),
    _whole(
        "events_kept", 50_000, 10, 1_000_000, "some 15 MB; a reader of events may be away for seconds under full load"
    ),
    Key(
        "tokens",
        _tokens,
        "list of { token_sha256, roles, queues }; as text JSON",
        [],
        "without: loopback only, no check",
    ),
    Key("log_level", _level, " or ".join(LOG_LEVELS), "info", "a line for what changed; debug is for a fault at hand"),
)


def load_config(
    path: Path | None = None, *, flags: Mapping[str, str] = {}, environ: Mapping[str, str] = {}
) -> NodeConfig:
    """Read, merge, check. `flags` by key name, as text; `environ` as the process has it.

    Raises: `ConfigError`, one line that names the key, where it was given, and the fix.
    """
    values: dict[str, Any] = {}
    file_values = {} if path is None else _read_file(path)
    _refuse_unknown_env(environ)
    for key in KEYS:
        if key.name in flags:
            given, where = flags[key.name], key.flag
        elif key.env in environ:
            given, where = environ[key.env], key.env
        elif key.name in file_values:
            given, where = file_values[key.name], f"{path}: {key.name}"
            if type(key.default) is int and isinstance(given, str):  # unlike a flag, the file can say a number
                raise ConfigError(f"{where}: must be a whole number without quotes, not {given!r}")
        elif key.required:
            raise ConfigError(f"{key.name} is missing: set it in the file, as {key.env} or as {key.flag}")
        else:
            given, where = key.default, key.name
        values[key.name] = None if given is None else _parse(key, given, where)
    return _build(values)


def render_docs() -> str:
    """The text of `docs/generated/config.md`."""
    lines = [
        "# Configuration of a node",
        "",
        "Generated from `node/horae_node/config.py` by `python -m horae_node.config`; a test compares the two.",
        "Each key may stand in the file (`horae node --config node.toml`), in the environment as `HORAE_` and its name",
        "in upper case, or as a flag: a flag wins over the environment, the environment over the file. Unknown keys",
        "and impossible values are refused by name, exit code 2. Units are the end of each name.",
        "",
        "| key | environment, flag | value | default | why |",
        "|---|---|---|---|---|",
    ]
    for key in KEYS:
        default = "required" if key.required else "computed" if key.default is None else f"`{json.dumps(key.default)}`"
        lines.append(f"| `{key.name}` | `{key.env}` `{key.flag}` | {key.form} | {default} | {key.reason} |")
    return "\n".join(lines) + "\n"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    known = [key.name for key in KEYS]
    for name in values:
        if name not in known:
            raise ConfigError(f"{path}: unknown key {name}{_nearest(name, known)}")
    return values


def _refuse_unknown_env(environ: Mapping[str, str]) -> None:
    known = [key.env for key in KEYS]
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in known and name not in ENV_OF_OTHERS:
            raise ConfigError(f"unknown environment variable {name}{_nearest(name, known)}")


def _nearest(name: str, known: list[str]) -> str:
    """The key that was meant. What all variables begin with makes none of them near."""
    named = {key.removeprefix(ENV_PREFIX): key for key in known}
    close = [named[key] for key in difflib.get_close_matches(name.removeprefix(ENV_PREFIX), named, 1)]
    return f": did you mean {close[0]}?" if close else "; the keys are in docs/generated/config.md"


def _parse(key: Key, given: Any, where: str) -> Any:
    try:
        return key.parse(given)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _build(values: dict[str, Any]) -> NodeConfig:
    node_id: str = values["node_id"]
    table: dict[str, dict[str, str]] | None = values.pop("members")
    if values["join"]:
        table = _only_own(node_id, table, values["raft_listen"])
    elif table is None:
        raise ConfigError("members is missing: set it in the file, as HORAE_MEMBERS or as --members, or give join")
    if node_id not in table:
        raise ConfigError(
            f"members has no entry for this node, {node_id}: add it, or mend node_id (has {', '.join(table)})"
        )
    if len(table) not in MEMBER_COUNTS:
        raise ConfigError(
            f"members has {len(table)} nodes: it must be 1, 3, 5 or 7, since an even one adds no "
            "safety; a further node of a running cluster is started with join in the place of members"
        )
    values["http_advertise"] = _advertised(values["http_advertise"], table[node_id].get("http"), values["http_listen"])
    members = tuple(_member(name, table[name], values) for name in sorted(table))
    _refuse_shared_addresses(members)
    own = next(member for member in members if member.node_id == node_id)
    values["raft_listen"] = values["raft_listen"] or parse_address(own.raft_address)
    config = NodeConfig(members=members, **values)
    _require_sense(config)
    return config


def _only_own(
    node_id: str, table: dict[str, dict[str, str]] | None, listen: Address | None
) -> dict[str, dict[str, str]]:
    """The one entry of a node that joins: its own, as it stands in members, or as it listens."""
    if table is not None:
        if set(table) != {node_id}:
            raise ConfigError(
                f"members of a node that joins may name itself, {node_id}, only: the cluster has the others"
            )
        return table
    if listen is None or _is_wildcard(listen.host):
        raise ConfigError(
            "raft_listen must be the address at which the other nodes reach this one, or members must name it: "
            f'members.{node_id} = {{ raft = "host:port" }}'
        )
    return {node_id: {"raft": str(listen)}}


def _advertised(given: str | None, own_http: str | None, listen: Address) -> str:
    if own_http is not None:
        try:
            own_http = parse_url(own_http)
        except ValueError as error:
            raise ConfigError(f"members: own http {error}") from error
        if given is not None and given != own_http:
            raise ConfigError(f"http_advertise is {given}, but members says {own_http}: leave one of them out")
    if given is None and own_http is None and _is_wildcard(listen.host):
        raise ConfigError(f"http_advertise is missing: others cannot reach {listen.host}; give the URL that they use")
    return own_http or given or f"http://{listen}"


def _member(node_id: str, entry: dict[str, str], values: dict[str, Any]) -> Member:
    if "raft" not in entry:
        raise ConfigError(f'members: {node_id} has no raft address: add raft = "host:port"')
    if node_id == values["node_id"]:
        url = values["http_advertise"]
    elif "http" not in entry:
        raise ConfigError(f'members: {node_id} has no http URL: add http = "http://host:port"')
    else:
        url = entry["http"]
    try:
        address = parse_peer_address(entry["raft"])
    except ValueError as error:
        raise ConfigError(f"members: raft of {node_id} {error}") from error
    try:
        return Member(node_id, str(address), parse_url(url))
    except ValueError as error:
        raise ConfigError(f"members: http of {node_id} {error}") from error


def _refuse_shared_addresses(members: tuple[Member, ...]) -> None:
    seen: dict[str, str] = {}
    for member in members:
        for address in (member.raft_address, member.http_url):
            other = seen.setdefault(address, member.node_id)
            if other != member.node_id:
                raise ConfigError(
                    f"members: {other} and {member.node_id} have one address, {address}: each needs its own"
                )


def _require_sense(config: NodeConfig) -> None:
    """What no key can know alone. Raises: `ConfigError`."""
    if config.election_min_ms <= 2 * config.heartbeat_ms:
        raise ConfigError(
            f"election_min_ms is {config.election_min_ms}: it must exceed twice heartbeat_ms ({config.heartbeat_ms}), "
            "or one late beat starts an election"
        )
    if config.election_max_ms <= config.election_min_ms:
        raise ConfigError(
            f"election_max_ms is {config.election_max_ms}: it must exceed election_min_ms ({config.election_min_ms})"
        )
    if config.fallback_ms <= 2 * config.heartbeat_ms:
        raise ConfigError(
            f"fallback_ms is {config.fallback_ms}: it must exceed twice heartbeat_ms ({config.heartbeat_ms}), "
            "or a healthy leader steps down"
        )
    if config.http_listen == config.raft_listen:
        raise ConfigError(f"http_listen and raft_listen are both {config.http_listen}: give each its own port")
    if not config.tokens and not is_loopback(config.http_listen.host):
        raise ConfigError(
            f"http_listen is {config.http_listen}, open to others, and there are no tokens: "
            "add [[tokens]], or listen on 127.0.0.1"
        )


if __name__ == "__main__":
    print(render_docs(), end="")
