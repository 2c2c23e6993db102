"""Code, markup, data and logs with lines that repeat."""

import json
from random import Random

from tests.ordinary.words import NOUNS, name, phrase, sentence


def prints(rng: Random) -> str:
    line = rng.choice(
        ('print("hello")', "print()", "nop", "sleep 1", "time.sleep(0.1)", 'console.log("here");', "pass")
    )
    return "```python\n" + f"    {line}\n" * rng.randint(3, 14) + "```"


def getters(rng: Random) -> str:
    template = "    public int get{0}() {{\n        return this.{1};\n    }}\n"
    return "public class Thing {\n" + "\n".join(template.format(n.title(), n) for n in rng.sample(NOUNS, 12)) + "}"


def asserts(rng: Random) -> str:
    return "\n".join(
        f"    assert add({a}, {b}) == {a + b}" for a, b in [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(25)]
    )


def switch(rng: Random) -> str:
    cases = "".join(
        f'        case "{word}":\n            handle(value);\n            break;\n' for word in rng.sample(NOUNS, 15)
    )
    return f"switch (kind) {{\n{cases}}}"


def zeros(rng: Random) -> str:
    size = rng.randint(3, 16)
    row = "    [" + ", ".join([rng.choice(("0", "0.0", "1", "None", "False"))] * size) + "],\n"
    return "board = [\n" + row * rng.randint(3, 16) + "]"


def identity(rng: Random) -> str:
    size = rng.randint(3, 12)
    return "\n".join(" ".join("1" if a == b else "0" for a in range(size)) for b in range(size))


def lookup(rng: Random) -> str:
    return "static const uint8_t table[] = {\n" + ("    " + "0x00, " * 12 + "\n") * rng.randint(2, 16) + "};"


def inserts(rng: Random) -> str:
    return "\n".join(
        f"INSERT INTO users (id, name, active) VALUES ({at}, '{name(rng)}', TRUE);"
        for at in range(1, rng.randint(8, 40))
    )


def same_inserts(rng: Random) -> str:
    return "\n".join(f"INSERT INTO t (id, a, b, c) VALUES ({at}, 0, 0, NULL);" for at in range(1, rng.randint(8, 40)))


def html(rng: Random) -> str:
    item = f'    <li><a href="#">{phrase(rng)}</a></li>\n'
    return "<ul>\n" + item * rng.randint(3, 8) + "</ul>\n" + "</div>\n" * rng.randint(2, 10)


def html_table(rng: Random) -> str:
    row = "  <tr>" + "<td></td>" * rng.randint(2, 7) + "</tr>\n"
    return "<table>\n" + row * rng.randint(3, 20) + "</table>"


def xml(rng: Random) -> str:
    return "".join(
        f"<item><id>{at}</id><name>{name(rng)}</name><ok>true</ok></item>\n" for at in range(rng.randint(5, 30))
    )


def css(rng: Random) -> str:
    return "\n".join(f".{word} {{\n  margin: 0;\n  padding: 0;\n  color: #333;\n}}\n" for word in rng.sample(NOUNS, 14))


def yaml(rng: Random) -> str:
    return "\n".join(f"- name: {word}\n  enabled: true\n  retries: 3\n  timeout: 30" for word in rng.sample(NOUNS, 14))


def records(rng: Random) -> str:
    rows = [{"id": at, "name": name(rng), "active": True, "tags": []} for at in range(rng.randint(5, 30))]
    return json.dumps(rows, indent=rng.choice((None, 2)))


def same_records(rng: Random) -> str:
    rows = [{"name": "string", "value": 0, "active": False}] * rng.randint(3, 15)
    return json.dumps(rows, indent=rng.choice((None, 2, 4)))


def nulls(rng: Random) -> str:
    value: object = rng.choice((None, 0, 0.0, "", [], False, 1))
    return json.dumps({"values": [value] * rng.randint(5, 120)})


def csv(rng: Random) -> str:
    return "\n".join(f"{at},{rng.randint(0, 1)},0,0,{name(rng)}" for at in range(rng.randint(10, 60)))


def flat_csv(rng: Random) -> str:
    return "a,b,c\n" + "0,0,0\n" * rng.randint(5, 60)


def log(rng: Random) -> str:
    word = rng.choice(NOUNS)
    return "\n".join(
        f"2025-03-{1 + at // 24:02d} {at % 24:02d}:00:01 INFO worker-{rng.randint(1, 4)} finished {word} {at} "
        f"in {rng.randint(1, 90)} ms"
        for at in range(rng.randint(10, 60))
    )


def wordy_log(rng: Random) -> str:
    """Long lines that differ in a number or two."""
    said = f"the scheduler has moved the {phrase(rng)} to the other queue because the first one was full"
    return "\n".join(f"[{at:04d}] {said} ({rng.randint(1, 9)} left)" for at in range(rng.randint(6, 25)))


def retries(rng: Random) -> str:
    return (
        f"{rng.choice(('Connection refused, retrying...', 'Waiting for database...', 'WARN timeout'))}\n"
        * rng.randint(3, 12)
    )


def ping(rng: Random) -> str:
    return "\n".join(
        f"64 bytes from 10.0.0.1: icmp_seq={at} ttl=64 time={rng.randint(10, 40) / 100:.2f} ms" for at in range(1, 30)
    )


def progress(rng: Random) -> str:
    return "\n".join(f"Downloading... [{'#' * at}{'.' * (20 - at)}] {at * 5}%" for at in range(21))


def hexdump(rng: Random) -> str:
    lines = [f"{at * 16:08x}  {'00 ' * 8} {'00 ' * 8} |{'.' * 16}|" for at in range(rng.randint(4, 20))]
    return "\n".join(lines)


def assembly(rng: Random) -> str:
    return "section .data\n" + "    db 0\n" * rng.randint(4, 20) + "    nop\n" * rng.randint(4, 30)


def latex(rng: Random) -> str:
    size = rng.randint(3, 8)
    row = " & ".join(["0"] * size) + r" \\" + "\n"
    return r"\begin{pmatrix}" + "\n" + row * size + r"\end{pmatrix}" + "\n" + sentence(rng)


def diff(rng: Random) -> str:
    return "\n".join(f"-    {word} = None\n+    {word}: int | None = None" for word in rng.sample(NOUNS, 14))


def tree(rng: Random) -> str:
    return "\n".join(f"{'│   ' * rng.randint(0, 3)}├── __init__.py" for _ in range(rng.randint(8, 30)))


CODE = (
    prints, getters, asserts, switch, zeros, identity, lookup, inserts, same_inserts, html, html_table, xml,
    css, yaml, records, same_records, nulls, csv, flat_csv, log, wordy_log, retries, ping, progress, hexdump,
    assembly, latex, diff, tree,
)  # fmt: skip
