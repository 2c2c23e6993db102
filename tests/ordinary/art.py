"""Pictures made of characters, notations and numbers."""

from random import Random

from tests.ordinary.words import name, sentence


def box(rng: Random) -> str:
    width, sign = rng.randint(10, 70), rng.choice("*#=+-")
    rows = [sign + " " * width + sign] * rng.randint(2, 15)
    return "\n".join([sign * (width + 2), *rows, sign * (width + 2)])


def triangle(rng: Random) -> str:
    sign, rows = rng.choice("*#o^"), rng.randint(5, 30)
    return "\n".join(" " * (rows - at) + (sign + " ") * at for at in range(1, rows))


def block(rng: Random) -> str:
    return (rng.choice("#*█░") * rng.randint(8, 40) + "\n") * rng.randint(3, 16)


def checkers(rng: Random) -> str:
    size = rng.randint(4, 12)
    dark, light = rng.choice((("#", " "), ("■", "□"), ("X", "O"), ("⬛", "⬜")))
    return "\n".join("".join((dark, light)[(a + b) % 2] for a in range(size)) for b in range(size))


def rules(rng: Random) -> str:
    rule = rng.choice("-=*_~") * rng.randint(20, 120)
    return "\n".join(f"{rule}\n{sentence(rng)}" for _ in range(rng.randint(2, 10)))


def bars(rng: Random) -> str:
    return "\n".join(f"{name(rng):8} | {'█' * rng.randint(1, 40)}" for _ in range(rng.randint(4, 15)))


def skyline(rng: Random) -> str:
    houses = rng.randint(3, 8)
    return "\n".join(part * houses for part in ("  /\\  ", " /  \\ ", "/____\\", "|    |", "| [] |", "|____|"))


def brick_wall(rng: Random) -> str:
    return "".join(("|___" * 10 + "|\n", "__|_" * 10 + "_\n")[at % 2] for at in range(rng.randint(4, 14)))


def calendar(rng: Random) -> str:
    start, days = rng.randint(0, 6), rng.randint(28, 31)
    cells = ["  "] * start + [f"{day:2}" for day in range(1, days + 1)]
    return "Mo Tu We Th Fr Sa Su\n" + "\n".join(" ".join(cells[at : at + 7]) for at in range(0, len(cells), 7))


def board(rng: Random) -> str:
    """An empty game: noughts and crosses, a bingo card, a chess position after few moves."""
    size = rng.randint(3, 10)
    row, rule = "|" + "   |" * size, "+" + "---+" * size
    return "\n".join([rule, *[part for _ in range(size) for part in (row, rule)]])


def chords(rng: Random) -> str:
    line = "| " + " | ".join(rng.choice(["C", "G", "Am", "F", "Dm", "Em"]) for _ in range(4)) + " |\n"
    return f"Verse\n{line * rng.randint(2, 6)}\nChorus\n{line * rng.randint(2, 6)}"


def drums(rng: Random) -> str:
    lines = [
        f"{part}|{(beat * 4)[:16]}|{(beat * 4)[:16]}|"
        for part, beat in (("HH", "x-x-"), ("SD", "----o---"), ("BD", "o---"))
    ]
    return "\n\n".join(["\n".join(lines)] * rng.randint(2, 5))


def tablature(rng: Random) -> str:
    bar = "-".join(rng.choice("0237-") for _ in range(8))
    return "\n".join(f"{string}|{'-'.join([bar] * 3)}|" for string in "eBGDAE")


def knitting(rng: Random) -> str:
    return "\n".join(
        f"Row {at}: {rng.choice(('k2, p2', 'knit', 'purl'))} to the end." for at in range(1, rng.randint(8, 30))
    )


def dna(rng: Random) -> str:
    return "".join(rng.choice("ACGT") for _ in range(200)) + rng.choice(("CAG", "GAA", "TTAGGG")) * rng.randint(5, 30)


def decimals(rng: Random) -> str:
    """One over seven, to many places."""
    number, places = rng.choice((3, 6, 7, 9, 11, 13, 37)), rng.randint(20, 100)
    return f"1/{number} = 0.{10**places // number:0{places}d}..."


def alternating(rng: Random) -> str:
    return ", ".join([rng.choice(("0, 1", "1, -1", "a, b", "red, blue", "heads, tails"))] * rng.randint(5, 25))


def flips(rng: Random) -> str:
    return " ".join(rng.choice("HT") for _ in range(rng.randint(20, 200)))


def primes(rng: Random) -> str:
    found = [n for n in range(2, rng.randint(100, 900)) if all(n % d for d in range(2, int(n**0.5) + 1))]
    return ", ".join(map(str, found))


def up(rng: Random) -> str:
    start, step = rng.randint(0, 50), rng.randint(1, 10)
    return rng.choice((", ", "\n", " ")).join(str(start + step * at) for at in range(rng.randint(20, 300)))


def times_table(rng: Random) -> str:
    number = rng.randint(2, 12)
    return "\n".join(f"{number} x {at} = {number * at}" for at in range(1, rng.randint(11, 40)))


def grid(rng: Random) -> str:
    return "\n".join(" ".join(f"{a * b:3}" for a in range(1, 13)) for b in range(1, rng.randint(5, 13)))


def binary(rng: Random) -> str:
    return "\n".join(f"{at:3} = {at:08b}" for at in range(rng.randint(8, 64)))


def truth_table(rng: Random) -> str:
    return "\n".join(f"| {at >> 2 & 1} | {at >> 1 & 1} | {at & 1} | {rng.randint(0, 1)} |" for at in range(8))


def big_numbers(rng: Random) -> str:
    return "\n".join(f"10^{at} = 1{'0' * at}" for at in range(rng.randint(5, 40)))


def steps(rng: Random) -> str:
    left, right = rng.randint(2, 90), rng.randint(2, 90)
    return "\n".join(f"Step {at}: {left} + {right} = {left + right * at}" for at in range(1, rng.randint(5, 30)))


def morse(rng: Random) -> str:
    return " ".join("".join(rng.choice(".-") for _ in range(rng.randint(1, 4))) for _ in range(60)) + " ... --- ..." * 4


def emoji(rng: Random) -> str:
    return "\n".join(rng.choice("🌲🌊🏠🌕") * rng.randint(5, 12) for _ in range(rng.randint(4, 10)))


ART = (
    box, triangle, block, checkers, rules, bars, skyline, brick_wall, calendar, board, chords, drums, tablature,
    knitting, dna, decimals, alternating, flips, primes, up, times_table, grid, binary, truth_table,
    big_numbers, steps, morse, emoji,
)  # fmt: skip
