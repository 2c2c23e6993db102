"""Few words that are said again on purpose: in one line, in a stanza, in a list, in a table, around code."""

import json
from random import Random

from tests.ordinary.words import ADJECTIVES, NOUNS, VERBS, name, paragraph, phrase, sentence

CHANTS = (
    "we want more|are we there yet|let us go home now|all for one and one for all|the king is dead|"
    "make way for the king|I think I can|give us bread and peace|who let the dog in|nothing ever changes here|"
    "two more hours to go"
)
RHYTHMS = (
    "left foot, right foot|one two three|knit two, purl two|breathe in, breathe out|work, eat, sleep|"
    "quick, quick, slow|push and pull|up the hill and down again|tick, tock, tick, tock|step, ball, change|"
    "red, white and blue|circle, square, triangle|boil, stir, taste"
)
TWISTERS = (
    "red leather, yellow leather|unique New York|toy boat on the bay|a proper copper coffee pot|six sticky skeletons|"
    "Irish wristwatch, Swiss wristwatch|truly rural, purely plural"
)
MANTRAS = (
    "om mani padme hum|may all beings be happy|I am calm and I am strong|lord have mercy on us|"
    "thy will be done on earth|hare Krishna, hare Rama"
)
SUNG = (
    "let it be|round and round|I still remember you|take me home tonight|never let me go again|down by the river|"
    "shine on me|we will find a way"
)
RAN = (
    "and they ran|and it rained|and she waited for him|and the river rose|further and further|"
    "the mother of|deeper into the forest"
)


def _one(rng: Random, texts: str) -> str:
    return rng.choice(texts.split("|"))


def _of(said: str, join: str, times: int) -> str:
    return join.join([said] * times)


def chant_in_quotes(rng: Random) -> str:
    said, mark = _one(rng, CHANTS), rng.choice((", ", "! ", "? ", "... "))
    told = _of(said if mark == ", " else said.capitalize(), mark, rng.randint(2, 9))
    opening, closing = rng.choice((('"', '"'), ("“", "”"), ("«", "»"), ("'", "'")))
    return f"{paragraph(rng, 2)} The crowd shouted, {opening}{told}!{closing} {sentence(rng)}"


def chant_in_speech(rng: Random) -> str:
    """The words that come again are not the first in the quotation."""
    told = _of(_one(rng, CHANTS), ", ", rng.randint(2, 8))
    return f'{sentence(rng)} "{name(rng)}, listen to me, {told}," said {name(rng)}. {paragraph(rng, 2)}'


def chant_after_a_colon(rng: Random) -> str:
    start = rng.choice(("And all of them sang:", "Say it slowly:", "The song is simple:", "**Chorus:**"))
    return f"{sentence(rng)} {start} {_of(_one(rng, CHANTS), ', ', rng.randint(2, 9))}. {sentence(rng)}"


def chant_in_the_story(rng: Random) -> str:
    """As told by a narrator, who says it three times at most."""
    return f"{sentence(rng)[:-1]}, {_of(_one(rng, RAN), ', ', rng.randint(2, 3))}, until {sentence(rng).lower()}"


def rhythm(rng: Random) -> str:
    start = rng.choice(("Count like this:", "The pattern is:", "It goes", "Repeat:", "-", "1."))
    return f"{sentence(rng)}\n\n{start} {_of(_one(rng, RHYTHMS), rng.choice((', ', ' – ', '; ')), rng.randint(2, 8))}."


def rhythm_on_lines(rng: Random) -> str:
    lines = [_of(_one(rng, RHYTHMS).capitalize(), ", ", rng.randint(1, 4)) for _ in range(rng.randint(2, 5))]
    return "\n".join(f"{line}{rng.choice((',', '.', ''))}" for line in lines for _ in range(rng.randint(1, 3)))


def twister(rng: Random) -> str:
    told = _of(_one(rng, TWISTERS), ", ", rng.randint(3, 7))
    start = rng.choice(("Now faster:", "Try to say it:", "Say this quickly:", "**Warm-up:**"))
    return f"{start} {told}.\n\n{paragraph(rng, 2)}"


def twister_on_a_line(rng: Random) -> str:
    return f"{sentence(rng)}\n\n{_of(_one(rng, TWISTERS).capitalize(), ', ', rng.randint(3, 6))}.\n\n{sentence(rng)}"


def mantra_in_a_line(rng: Random) -> str:
    start = rng.choice(("", f"{sentence(rng)}\n\n", "Repeat in your mind: ", "> "))
    return f"{start}{_of(_one(rng, MANTRAS).capitalize(), '. ', rng.randint(3, 9))}.\n\n{sentence(rng)}"


def sung_in_a_line(rng: Random) -> str:
    """A song whose lines have the same words up to four times."""
    lines = [
        rng.choice((sentence(rng)[:-1], f"{_of(_one(rng, SUNG), ', ', rng.randint(2, 4)).capitalize()}"))
        for _ in range(rng.randint(8, 20))
    ]
    return "\n".join(f"{line}{rng.choice(('', ',', '.'))}" for line in lines)


def sung_chorus(rng: Random) -> str:
    """Each chorus has a line two to four times, set off by a gap."""
    line = _one(rng, SUNG).capitalize()
    verse = [f"{sentence(rng)[:-1]}{rng.choice((',', ''))}" for _ in range(4)]
    chorus = [f"{line}{rng.choice((',', ',', '!', ''))}"] * rng.randint(2, 5)
    return "\n".join([*verse, "", *chorus, "", *verse[::-1], "", *chorus])


def refrain_in_a_stanza(rng: Random) -> str:
    """The same verse up to three times in a row, among others."""
    stanzas = []
    for _ in range(rng.randint(2, 5)):
        verses = [f"{sentence(rng)[:-1]}," for _ in range(rng.randint(1, 3))]
        stanzas.append("\n".join([*verses, *[f"The {phrase(rng)}, the {rng.choice(NOUNS)},"] * rng.randint(1, 3)]))
    return "\n\n".join(f"{stanza[:-1]}." for stanza in stanzas)


def two_line_refrain(rng: Random) -> str:
    two = f"O {rng.choice(NOUNS)}, my {rng.choice(NOUNS)},\nO {phrase(rng)} of mine,\n"
    return "\n".join(f"{sentence(rng)[:-1]},\n{two * rng.randint(1, 2)}" for _ in range(rng.randint(3, 6)))


def bullets_by_day(rng: Random) -> str:
    """A list of several items under each day: the same each time but for its heading."""
    items = "".join(f"- {phrase(rng).capitalize()} {rng.choice(VERBS)} the {rng.choice(NOUNS)}\n" for _ in range(5))
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    return "\n".join(f"**{day}**\n{items}" for day in days[: rng.randint(4, 7)])


def blank_fields(rng: Random) -> str:
    """A sheet for several people, each with the same fields."""
    fields = [f"- {rng.choice(NOUNS).title()}: {rng.choice(('', '________', '[ ]', '...'))}" for _ in range(6)]
    return "\n".join(["\n".join(fields) + rng.choice(("\n", ""))] * rng.randint(4, 8))


def spices(rng: Random) -> str:
    """A recipe for several dressings, with the same ingredients in each."""
    parts = "".join(f"* 1/{rng.randint(2, 4)} cup {rng.choice(ADJECTIVES)} {word}\n" for word in rng.sample(NOUNS, 6))
    return "\n".join(f"## Dressing {at}\n{parts}" for at in range(1, rng.randint(4, 8)))


def rota(rng: Random) -> str:
    """The same three rows each week, with the week's number."""
    rows = [(name(rng), rng.choice(NOUNS)) for _ in range(rng.randint(2, 4))]
    body = [f"| {week} | {who} | {what} |" for week in range(1, rng.randint(4, 12)) for who, what in rows]
    return "\n".join(["| Week | Who | What |", "|---|---|---|", *body])


def people_in_turn(rng: Random) -> str:
    """Tasks given to some people, one after the other."""
    people = [name(rng) for _ in range(rng.randint(3, 7))]
    mark = rng.choice(("{}. ", "- ", "* "))
    return "\n".join(f"{mark.format(at + 1)}{people[at % len(people)]}" for at in range(rng.randint(12, 40)))


def exercises_in_turn(rng: Random) -> str:
    """A few exercises, two or three times in one list, or as often as there are rounds."""
    parts = [f"- {rng.randint(5, 30)} {phrase(rng)} lifts" for _ in range(rng.randint(3, 6))]
    if rng.random() < 0.5:
        return f"{sentence(rng)}\n\n" + "\n".join(parts * rng.randint(2, 3))
    return "\n".join(f"**Round {at}**\n{chr(10).join(parts)}" for at in range(1, rng.randint(4, 9)))


def rows_in_turn(rng: Random) -> str:
    """A pattern for the eye: plain and coloured rows in turn."""
    two = rng.sample(("| # | # | # |", "| . | . | . |", "| X | O | X |", "|   |   |   |", "| - | - | - |"), 2)
    return "\n".join(["| a | b | c |", "|---|---|---|", *[row for _ in range(rng.randint(3, 8)) for row in two]])


def chord_sheet(rng: Random) -> str:
    line = "| " + " | ".join(rng.choice(("C", "G", "Am", "F", "Dm", "Em")) for _ in range(4)) + " |"
    return "\n".join([rng.choice(("Intro", "Verse", "Chorus:")), *[line] * rng.randint(4, 8)])


def empty_grid(rng: Random) -> str:
    row = "|" + rng.choice(("   ", "___", " . ", "  ")) + "|"
    row = row[:-1] * rng.randint(3, 9) + "|"
    fence = rng.choice(("```\n", "", ""))
    return f"{sentence(rng)}\n\n{fence}" + f"{row}\n" * rng.randint(4, 10) + f"{fence}\n{sentence(rng)}"


def cards(rng: Random) -> str:
    """A page with the same card several times, as an example of its style."""
    text = "Some quick example text to build on the card title and make up the bulk of the card's content."
    card = (
        f'  <div class="card">\n    <img src="{rng.choice(NOUNS)}.jpg" alt="{phrase(rng)}">\n    <h3>{name(rng)}</h3>\n'
        f'    <p>{rng.choice((text, sentence(rng)))}</p>\n    <a href="#" class="btn">Go somewhere</a>\n  </div>\n'
    )
    fence = rng.choice(("```html\n", ""))
    return f"{fence}<section>\n{card * rng.randint(3, 8)}</section>\n{fence and '```'}\n{sentence(rng)}"


def wide_records(rng: Random) -> str:
    """Objects with many members, all alike: a sample of what a server answers."""
    one = {
        word: rng.choice(("string", "to be filled in", 0, True, None, sentence(rng))) for word in rng.sample(NOUNS, 9)
    }
    return f"```json\n{json.dumps([one] * rng.randint(3, 8), indent=rng.choice((None, 2, 4)))}\n```\n{sentence(rng)}"


def steps_with_code(rng: Random) -> str:
    """The same command after each step; what is said about it differs."""
    code = f"```sh\ngit {rng.choice(VERBS)} origin main\n```"
    return "\n\n".join(f"{at}. {sentence(rng)}\n\n{code}\n\n{sentence(rng)}" for at in range(1, rng.randint(4, 9)))


def same_example(rng: Random) -> str:
    """An example with a few words around it, as often as it was asked for: three times at most."""
    said = f"Run this:\n\n```sh\nmake {rng.choice(VERBS)}\n```\n\n{sentence(rng)}\n\n"
    return f"{paragraph(rng, 2)}\n\n{said * rng.randint(2, 3)}{sentence(rng)}"


def sums(rng: Random) -> str:
    """Written out: a product of many equal factors."""
    part = rng.choice(("x", "0.5", "(a + b)", "price['net']", "`n`", "(1 + rate / 100)", "sum(values)"))
    sign = rng.choice((" + ", " * ", " × ", "*"))
    return f"{sentence(rng)}\n\n{_of(part, sign, rng.randint(3, 12))} = {rng.choice(NOUNS)}\n\n{sentence(rng)}"


def imports_by_file(rng: Random) -> str:
    """The same first lines in each file."""
    head = "import os\nimport sys\nfrom pathlib import Path\n"
    return "\n\n".join(f"**{word}.py**\n```python\n{head}\n{word} = 1\n```" for word in rng.sample(NOUNS, 6))


def same_cells(rng: Random) -> str:
    """A comparison in which a row has the same words in each column."""
    columns = rng.randint(3, 5)
    rows = [
        f"| {rng.choice(NOUNS).title()} "
        + f"| {' '.join(rng.sample(ADJECTIVES, 2))} {rng.choice(NOUNS)} " * columns
        + "|"
        if rng.random() < 0.4
        else f"| {rng.choice(NOUNS).title()} | " + " | ".join(phrase(rng) for _ in range(columns)) + " |"
        for _ in range(rng.randint(5, 10))
    ]
    same = f"| Tip | {' | '.join([phrase(rng) + ' ' + rng.choice(NOUNS)] * columns)} |"
    return "\n".join(["|" + " Item |" * (columns + 1), "|" + "---|" * (columns + 1), *rows, same, *rows[:2]])


AGAIN = (
    chant_in_quotes, chant_in_speech, chant_after_a_colon, chant_in_the_story, rhythm, rhythm_on_lines, twister,
    twister_on_a_line, mantra_in_a_line, sung_in_a_line, sung_chorus, refrain_in_a_stanza, two_line_refrain,
    bullets_by_day, blank_fields, spices, rota, people_in_turn,
    exercises_in_turn, rows_in_turn, chord_sheet, empty_grid, cards, wide_records,
    steps_with_code, same_example, sums, imports_by_file, same_cells,
)  # fmt: skip
