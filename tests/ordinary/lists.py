"""Lists, tables, plans and forms: what people ask an assistant for, and where lines look alike."""

from random import Random

from tests.ordinary.words import ADJECTIVES, NOUNS, VERBS, name, paragraph, phrase, sentence

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def numbered(rng: Random) -> str:
    return "\n".join(f"{at}. {sentence(rng)}" for at in range(1, rng.randint(5, 40)))


def same_beginnings(rng: Random) -> str:
    start = f"- The {rng.choice(NOUNS)} {rng.choice(VERBS)} the"
    return "\n".join(f"{start} {phrase(rng)}" for _ in range(rng.randint(5, 25)))


def checklist(rng: Random) -> str:
    return "\n".join(f"- [{rng.choice(' x')}] {phrase(rng).capitalize()}" for _ in range(rng.randint(5, 40)))


def ratings(rng: Random) -> str:
    return "\n".join(f"{name(rng)}: {'★' * rng.randint(1, 5)}{'☆' * rng.randint(0, 4)}" for _ in range(30))


def true_or_false(rng: Random) -> str:
    return "\n".join(f"{at}. {rng.choice(('True', 'False'))}" for at in range(1, rng.randint(10, 40)))


def all_true(rng: Random) -> str:
    return "\n".join(f"{at}. True" for at in range(1, rng.randint(10, 30)))


def varied_table(rng: Random) -> str:
    rows = [
        f"| {name(rng)} | {rng.randint(1, 99)} | {rng.choice(('yes', 'no', 'N/A'))} |"
        for _ in range(rng.randint(5, 40))
    ]
    return "\n".join(["| Name | Count | Done |", "|---|---|---|", *rows])


def constant_table(rng: Random) -> str:
    """A template to be filled in: every row is the same."""
    columns = rng.randint(2, 6)
    cell = rng.choice(("N/A", "-", "TBD", "0", "   ", "yes", "pending"))
    row = "|" + f" {cell} |" * columns
    return "\n".join(["|" + " Item |" * columns, "|" + "---|" * columns, *[row] * rng.randint(4, 30)])


def wide_blank_table(rng: Random) -> str:
    width, columns = rng.randint(8, 20), rng.randint(2, 5)
    rule = "+" + ("-" * width + "+") * columns
    row = "|" + (" " * width + "|") * columns
    return "\n".join([rule, *[part for _ in range(rng.randint(3, 15)) for part in (row, rule)]])


def form(rng: Random) -> str:
    lines = [f"{phrase(rng).capitalize()}: {'_' * rng.randint(10, 40)}" for _ in range(rng.randint(4, 12))]
    return "\n\n".join([*lines, *["_" * 60] * rng.randint(1, 6)])


def contents(rng: Random) -> str:
    lines = [f"Chapter {at}: {phrase(rng).title()}" for at in range(1, rng.randint(6, 30))]
    return "\n".join(f"{line} {'.' * (60 - len(line))} {at * 7}" for at, line in enumerate(lines, 1))


def week(rng: Random) -> str:
    """Every day is like every other but for its name."""
    tasks = [f"{hour}:00 {phrase(rng)}" for hour in range(8, rng.randint(11, 18))]
    return "\n\n".join("\n".join([f"**{day}**", *tasks]) for day in DAYS)


def workout(rng: Random) -> str:
    return "\n".join(
        f"- {phrase(rng).capitalize()}: {rng.choice((3, 4))} sets of 10 reps, rest 60 s" for _ in range(15)
    )


def meal_plan(rng: Random) -> str:
    meals = [f"  - {meal}: {phrase(rng)}" for meal in ("Breakfast", "Lunch", "Dinner")]
    return "\n".join("\n".join([f"- Day {at}", *meals]) for at in range(1, rng.randint(5, 15)))


def recipe(rng: Random) -> str:
    parts = [f"- {rng.randint(1, 9)} tbsp {phrase(rng)}" for _ in range(rng.randint(5, 12))]
    steps = [f"{at}. {sentence(rng)}" for at in range(1, rng.randint(5, 12))]
    return "\n".join(["# Ingredients", *parts, "", "# Method", *steps])


def questions(rng: Random) -> str:
    options = "   a) Always\n   b) Often\n   c) Seldom\n   d) Never"
    return "\n".join(f"{at}. {sentence(rng)[:-1]}?\n{options}" for at in range(1, rng.randint(4, 15)))


def survey(rng: Random) -> str:
    scale = "   ( ) Strongly agree  ( ) Agree  ( ) Neutral  ( ) Disagree  ( ) Strongly disagree"
    return "\n".join(f"{at}. {sentence(rng)}\n{scale}" for at in range(1, rng.randint(4, 12)))


def dialogue(rng: Random) -> str:
    one, other = name(rng), name(rng)
    lines = [f"{(one, other)[at % 2]}: {rng.choice(('Yes.', 'No.', 'Why?', sentence(rng)))}" for at in range(30)]
    return "\n".join(lines)


def glossary(rng: Random) -> str:
    return "\n".join(
        f"**{phrase(rng).title()}**: a {rng.choice(ADJECTIVES)} kind of {rng.choice(NOUNS)}." for _ in range(25)
    )


def pros_and_cons(rng: Random) -> str:
    def points() -> str:
        return "\n".join(f"- It is {rng.choice(ADJECTIVES)}." for _ in range(rng.randint(3, 8)))

    return f"## Advantages\n{points()}\n\n## Disadvantages\n{points()}"


def placeholder(rng: Random) -> str:
    """Cards of a web page with placeholder text: the same text under different headings, and twice in a row."""
    text = paragraph(rng, rng.randint(2, 4))
    cards = "\n\n".join(f"### {phrase(rng).title()}\n{text}" for _ in range(rng.randint(2, 6)))
    return f"{text}\n\n{text}\n\n{cards}"


LISTS = (
    numbered, same_beginnings, checklist, ratings, true_or_false, all_true, varied_table, constant_table,
    wide_blank_table, form, contents, week, workout, meal_plan, recipe, questions, survey, dialogue, glossary,
    pros_and_cons, placeholder,
)  # fmt: skip
