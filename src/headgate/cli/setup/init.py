"""Adds `headgate init`, which writes a config with comments: of flags, or of answers to a few questions."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import App, Parameter, validators

from headgate.cli.setup.groups import RUN
from headgate.cli.setup.keys import hash_of, new_key
from headgate.config.listen import ListenConfig
from headgate.model.errors import UsageError

USUAL = Path("headgate.yaml")
ADMIN = "admin"
Ask = Callable[[str, str], str]
"""Asks a question, with the answer that an empty line stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstConfig:
    """What a first config is to say."""

    replicas: tuple[str, ...] = ()
    host: str
    port: int
    tenants: tuple[str, ...] = ()
    admin: bool = False
    """Whether operators need a key of their own. As soon as a tenant has a key, they do."""


def add_to(app: App) -> None:
    app.command(init, group=RUN)


def init(
    path: Path = USUAL,
    *,
    replica: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    tenant: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    host: str | None = None,
    port: Annotated[int | None, Parameter(validator=validators.Number(gte=0, lte=65535))] = None,
    admin: Annotated[bool, Parameter(negative="")] = False,
    example: Annotated[bool, Parameter(negative="")] = False,
    force: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a first config, with comments. At a terminal and without flags it asks a few questions.

    Parameters
    ----------
    path
        File to write. Default: headgate.yaml.
    replica
        A running engine, such as http://10.0.0.7:8000; may be given several times. Default: Headgate runs its own.
    tenant
        A client with an API key, which is made here; may be given several times. Default: no client needs a key.
    host
        Address to listen on. Default: 127.0.0.1.
    port
        Port to listen on. Default: 8000.
    admin
        Make a key for operators. With tenants there always is one.
    example
        Write headgate.example.yaml, which shows every setting, and leave out the flags above.
    force
        Overwrite the file.
    """
    from headgate.cli.setup.example import example_text

    if path.exists() and not force:
        raise UsageError(f"{path} is there already: name another file, or overwrite it with --force")
    given = bool(replica or tenant or admin or host is not None or port is not None)
    if example and given:
        raise UsageError("--example shows every setting as it is: leave out the other options")
    if example:
        _write(path, example_text())
        print(f"wrote {path}, which shows every setting: keep what you need")
        return
    if sys.stdin.isatty() and not given:
        chosen = ask_for(_ask)
    else:
        listen = ListenConfig()
        chosen = FirstConfig(
            replicas=replica,
            host=host or listen.host,
            port=listen.port if port is None else port,
            tenants=tenant,
            admin=admin,
        )
    _make(chosen, path)


def _make(chosen: FirstConfig, path: Path) -> None:
    """Writes the config, and prints the keys whose hashes are in it."""
    from headgate.config.file import parse

    _check(chosen)
    text, keys = written(chosen)
    parse(text, str(path))
    _write(path, text)
    print(f"wrote {path}. Start it: headgate serve --config {path}")
    if keys:
        print("Keys, shown this once; the config holds only their hashes:")
        for name, api_key in keys.items():
            print(f"  {name:<12} {api_key}")


def _check(chosen: FirstConfig) -> None:
    """Raises UsageError for what the config could not say."""
    from headgate.config.file import replica_at
    from headgate.config.hints import Host, Name
    from headgate.config.listen import is_loopback

    for url in chosen.replicas:
        replica_at(url)
    for flag, hint, value in [("--host", Host, chosen.host), *(("--tenant", Name, name) for name in chosen.tenants)]:
        check = get_args(hint)[1]
        if not check.allows(value):
            raise UsageError(f"{flag}: expected text {check.expected}, got {value!r}")
    if len(set(chosen.tenants)) < len(chosen.tenants) or ADMIN in chosen.tenants:
        raise UsageError(f"--tenant: expected each name once, and none of them {ADMIN}")
    if not chosen.tenants and not is_loopback(chosen.host):
        raise UsageError(f"--host: other machines can reach {chosen.host}, so clients need keys: add --tenant NAME")


def ask_for(ask: Ask) -> FirstConfig:
    """Asks what a first config is to say."""
    replicas = ask("Addresses of running engines, with spaces between (empty: Headgate runs a small one itself)", "")
    port = ask("Port to listen on", str(ListenConfig().port))
    outside = ask("May other machines connect? (y/n)", "n").lower().startswith("y")
    names = ask("Names of clients that get an API key, with spaces between (empty: none needs a key)", "")
    if not port.isdecimal():
        raise UsageError(f"expected a port such as 8000, got {port!r}")
    return FirstConfig(
        replicas=tuple(replicas.split()),
        host="0.0.0.0" if outside else ListenConfig().host,
        port=int(port),
        tenants=tuple(names.split()),
    )


def written(chosen: FirstConfig) -> tuple[str, dict[str, str]]:
    """The text of the config, and the keys whose hashes are in it, by name."""
    keys = {name: new_key() for name in chosen.tenants}
    admin = new_key() if chosen.admin or chosen.tenants else ""
    parts = [_HEAD, _listen(chosen), _replicas(chosen), _tenants(keys), _admin(admin), _LANES, _REST]
    return "\n".join(parts), {**keys, **({ADMIN: admin} if admin else {})}


def _listen(chosen: FirstConfig) -> str:
    return f"""\
# Where clients connect. Beyond this machine only with a tenant's key.
listen:
  host: "{chosen.host}"
  port: {chosen.port}
#  tls: {{cert: /etc/headgate/cert.pem, key: /etc/headgate/key.pem}}
"""


def _replicas(chosen: FirstConfig) -> str:
    if not chosen.replicas:
        return """\
# Engines that are already running. None here: Headgate runs its own, with the model that came with it.
#replicas:
#  - url: http://10.0.0.7:8000
#    api_key_file: /run/secrets/engine-key   # where the engine wants a key
#embedded:
#  model: /models/my.gguf
"""
    lines = [f'  - url: "{url}"' for url in chosen.replicas]
    return "\n".join(
        [
            "# Engines that are already running. What each is and serves is found out.",
            "replicas:",
            *lines,
            "#    api_key_file: /run/secrets/engine-key   # where the engine wants a key",
            "",
        ]
    )


def _tenants(keys: dict[str, str]) -> str:
    if not keys:
        return """\
# Who has a key. None here: every client is served, and none is limited. `headgate key` makes a key and its hash.
#tenants:
#  acme:
#    key_sha256: [0000000000000000000000000000000000000000000000000000000000000001]
#    requests_per_min: 600
#    tokens_per_min: 400000   # prompt and output together
"""
    lines = [
        "# Who has a key. The config holds only hashes; `headgate key` makes another key and its hash.",
        "tenants:",
    ]
    for name, api_key in keys.items():
        lines += [
            f"  {name}:",
            f'    key_sha256: ["{hash_of(api_key)}"]',
            "#    requests_per_min: 600",
            "#    tokens_per_min: 400000   # prompt and output together",
            "#    tier: premium            # four times the share of free where both wait",
        ]
    return "\n".join([*lines, ""])


def _admin(admin: str) -> str:
    told = "# Who may look inside and change the running gateway: the page, headgate why, slow, doctor, fleet.\n"
    if not admin:
        return f"{told}# None here: everybody on this machine, and no one else.\n#admin_keys: []\n"
    return f'{told}admin_keys:\n  - "{hash_of(admin)}"\n'


_HEAD = """\
# A config of Headgate: headgate serve --config FILE. What is left out has its default, and `headgate export example`
# shows every setting. `headgate serve --config FILE --check` says whether this is right; while it runs, a changed file
# is taken with `headgate reload`, or by itself with --watch.
#
# Names ending in _s are times: seconds, or text such as 5m. In values, ${NAME} is an environment variable. For
# completion in an editor: headgate export schema > headgate.schema.json
"""
_LANES = """\
# What is promised to each class of requests. These are the defaults of the lane for short, streamed chats.
#lanes:
#  fast:
#    ttft_target_s: 0.5       # p95 of the time to the first token
#    gap_target_s: 0.2        # p99 of the time between two tokens
"""
_REST = """\
# A line of JSON for each request, without what was asked.
#record:
#  path: /var/log/headgate/requests.jsonl

# What is told to others.
#observe:
#  webhook: ${HEADGATE_WEBHOOK}   # gets a POST when an alert begins or ends
#  price_per_replica_hour: 2.5    # for the cost per 1 000 tokens
"""


def _ask(question: str, usual: str) -> str:
    answer = input(f"{question}{f' [{usual}]' if usual else ''}: ").strip()
    return answer or usual


def _write(path: Path, text: str) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} can't be written: there is no folder {path.absolute().parent}")
    path.write_text(text)
