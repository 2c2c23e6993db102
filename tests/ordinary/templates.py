"""Answers with equal lines because that is what was asked for: to be filled in, to be sung, to be done again."""

import json
from random import Random

from tests.ordinary.words import NOUNS, VERBS, name, paragraph, phrase, sentence

LOREM = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore."
LINES = (
    "I will not talk in class while the teacher is speaking.|I must remember to bring my homework every day.|"
    "Ich soll im Unterricht nicht mit meinem Nachbarn schwatzen.|Je ne dois pas parler pendant la leçon de français.|"
    "No debo correr por los pasillos de la escuela.|我上课的时候不可以和同学讲话。|मैं कक्षा में अपने मित्रों से बात नहीं करूँगा।|"
    "Я больше не буду разговаривать на уроке с соседом.|لن أتحدث مع زملائي أثناء الدرس مرة أخرى.|"
    "ฉันจะไม่คุยกับเพื่อนในขณะที่ครูกำลังสอนอยู่หน้าห้อง"
)
STEPS = (
    "Run fast for one minute, then walk slowly for two minutes|Knit across all stitches to the end of the row|"
    "Press the button and wait until the light turns green|Fold the dough in four and let it rest for half an hour|"
    "Breathe in slowly through the nose, hold for a moment, and let it all go|"
    "Apply a thin coat of paint and let it dry before the next"
)
BLANKS = (
    "[Insert a key point with its supporting evidence here]|Describe the next action item and who owns it|"
    "Topic to be discussed by the whole team|Name of the guest and what they would like to eat|"
    "Add a short description of the problem here|Write down one thing that you are grateful for"
)
PRAYERS = (
    "Hail Mary, full of grace, the Lord is with thee. Blessed art thou amongst women, and blessed is the fruit of thy "
    "womb, Jesus. Holy Mary, Mother of God, pray for us sinners, now and at the hour of our death. Amen.|"
    "May all beings be happy, may all beings be safe, may all beings be free from suffering.|"
    "Lord Jesus Christ, Son of God, have mercy on me, a sinner."
)
ROUNDS = (
    "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is but a dream.|"
    "Are you sleeping, are you sleeping,\nBrother John, Brother John?\nMorning bells are ringing, morning bells are "
    "ringing,\nDing dang dong, ding dang dong.|"
    "Bruder Jakob, Bruder Jakob,\nSchläfst du noch, schläfst du noch?\nHörst du nicht die Glocken, hörst du nicht die "
    "Glocken?\nDing dang dong, ding dang dong."
)


def _one(rng: Random, texts: str) -> str:
    return rng.choice(texts.split("|"))


def _asked(rng: Random) -> str:
    """How an answer begins."""
    said = ("Sure! Here you go:\n\n", "# Draft\n\n", "", "Here is what you asked for.\n\n", f"{paragraph(rng, 3)}\n\n")
    return rng.choice((*said, f"**{phrase(rng).title()}**\n"))


def _after(rng: Random) -> str:
    return rng.choice(("", f"\n{sentence(rng)}", "\nLet me know if you would like any changes!", "\n(fade)"))


def lines_to_write(rng: Random) -> str:
    return _asked(rng) + f"{_one(rng, LINES)}\n" * rng.randint(4, 10) + _after(rng)


def numbered_lines(rng: Random) -> str:
    line = _one(rng, LINES)
    return _asked(rng) + "".join(f"{at}. {line}\n" for at in range(1, rng.randint(5, 12))) + _after(rng)


def equal_steps(rng: Random) -> str:
    step, stop, first = _one(rng, STEPS), rng.choice((".", "")), rng.choice((0, 0, 1))
    steps = [sentence(rng)] * first + [f"{step}{stop}"] * rng.randint(4, 9) + [sentence(rng)]
    return _asked(rng) + "\n".join(f"{at}. {one}" for at, one in enumerate(steps, 1))


def steps_in_turn(rng: Random) -> str:
    one, other = rng.sample(STEPS.split("|"), 2)
    return _asked(rng) + "".join(f"{2 * at + 1}. {one}\n{2 * at + 2}. {other}\n" for at in range(rng.randint(3, 5)))


def blanks(rng: Random) -> str:
    mark, blank = rng.choice(("- ", "- [ ] ", "* ", "• ", "", "☐ ")), _one(rng, BLANKS)
    return _asked(rng) + f"{mark}{blank}\n" * rng.randint(4, 10) + _after(rng)


def labelled_blanks(rng: Random) -> str:
    label = f"{rng.choice(NOUNS).title()}: {_one(rng, BLANKS)}\n{rng.choice(NOUNS).title()}: ____________\n\n"
    return _asked(rng) + label * rng.randint(4, 8) + _after(rng)


def numbered_blanks(rng: Random) -> str:
    blank = _one(rng, BLANKS)
    return _asked(rng) + "".join(f"{at}. {blank}\n" for at in range(1, rng.randint(6, 11))) + _after(rng)


def blanks_after_others(rng: Random) -> str:
    """A list that begins with something, and leaves the rest open."""
    some = [f"- {phrase(rng).capitalize()} {rng.choice(VERBS)} the {phrase(rng)}" for _ in range(rng.randint(1, 5))]
    return _asked(rng) + "\n".join([*some, *[f"- {_one(rng, BLANKS)}"] * rng.randint(4, 8)]) + _after(rng)


def lorem_items(rng: Random) -> str:
    tag = rng.choice(("li", "p", 'div class="card"', "td"))
    line = f"  <{tag}>{rng.choice((LOREM, LOREM[:56], sentence(rng)))}</{tag.split()[0]}>{rng.choice((chr(10), ''))}"
    fence = rng.choice(("```html\n", "```jsx\n", ""))
    return f"{_asked(rng)}{fence}<section>\n{line * rng.randint(4, 9)}</section>\n{fence and '```'}\n{sentence(rng)}"


def lorem_paragraphs(rng: Random) -> str:
    return _asked(rng) + f"{LOREM} {LOREM[:56]}.\n\n" * rng.randint(4, 6) + _after(rng)


def prayers(rng: Random) -> str:
    return _asked(rng) + (_one(rng, PRAYERS) + rng.choice(("\n", "\n\n"))) * rng.randint(4, 10) + _after(rng)


def rounds(rng: Random) -> str:
    return _asked(rng) + (_one(rng, ROUNDS) + "\n\n") * rng.randint(3, 6) + _after(rng)


def last_chorus(rng: Random) -> str:
    """Verses, and at the end a line that is sung until it fades."""
    verses = "\n\n".join("\n".join(sentence(rng)[:-1] + "," for _ in range(4)) for _ in range(2))
    line = rng.choice(
        ("And I will always come back home to you", "Na na na na, na na na na, hey now", "Oh, let it shine")
    )
    return f"{verses}\n\n{rng.choice(('Chorus:' + chr(10), ''))}" + f"{line}\n" * rng.randint(3, 8) + "(fade)"


def wordy_retries(rng: Random) -> str:
    line = f"WARN connection refused by the {rng.choice(NOUNS)} server, trying again in a moment{rng.choice(('.', ''))}"
    first = [f"INFO connecting to the {phrase(rng)}{rng.choice(('.', ''))}" for _ in range(rng.randint(0, 3))]
    fence = rng.choice(("```\n", ""))
    return f"Sample log:\n{fence}" + "\n".join([*first, *[line] * rng.randint(4, 10), "INFO connected"]) + f"\n{fence}"


def equal_rows(rng: Random) -> str:
    row = f"| tbd | {_one(rng, BLANKS).strip('[]')} | {name(rng)} |\n"
    return _asked(rng) + "| Day | Plan | Who |\n|---|---|---|\n" + row * rng.randint(5, 12)


def equal_csv(rng: Random) -> str:
    row = f"Unknown,{name(rng)} {rng.choice(NOUNS)},active member since {rng.choice(NOUNS)},{rng.choice(NOUNS)}\n"
    return "name,city,status\n" + row * rng.randint(5, 12)


def equal_yaml(rng: Random) -> str:
    step = f"  - name: wait for the {rng.choice(NOUNS)} service to be ready\n    run: {rng.choice(VERBS)}\n"
    return "```yaml\nsteps:\n" + step * rng.randint(4, 9) + "```\n"


def equal_json(rng: Random) -> str:
    rows = [{"name": "placeholder", "description": "to be filled in by the user later on"}] * rng.randint(4, 9)
    return _asked(rng) + json.dumps(rows, indent=rng.choice((None, 2)))


def equal_sql(rng: Random) -> str:
    line = f"INSERT INTO {rng.choice(NOUNS)} SELECT name FROM staging WHERE active;\n"
    return _asked(rng) + line * rng.randint(4, 9)


def equal_calls(rng: Random) -> str:
    calls = [f"    {rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.choice(NOUNS)}\n" for _ in range(rng.randint(1, 3))]
    return "```\nrepeat\n" + "".join(calls) * rng.randint(4, 10) + "end\n```\n" + sentence(rng)


def equal_comments(rng: Random) -> str:
    code = f"    # Wait until the {rng.choice(NOUNS)} is ready, and then try once more\n    pass\n"
    return "```python\ndef main():\n" + code * rng.randint(4, 9) + "```\n"


def equal_scenarios(rng: Random) -> str:
    page = rng.choice(NOUNS)
    said = f"Scenario: the user opens the {page}\n  Given the user is signed in\n  When the {page} is opened\n"
    return (said + "  Then the title is shown\n\n") * rng.randint(4, 7)


def equal_questions(rng: Random) -> str:
    asked = rng.choice(("How satisfied are you with this part of the course?", "The statement is true or false."))
    options = rng.choice(("   Very satisfied\n   Satisfied\n   Not satisfied\n", "True\nFalse\n"))
    return _asked(rng) + "".join(f"{at}. {asked}\n{options}" for at in range(1, rng.randint(5, 11))) + "\nThank you!"


def equal_turns(rng: Random) -> str:
    child, parent = name(rng), name(rng)
    turn = f"{child}: Are we there yet?\n{parent}: No, not yet, we will be there soon.\n"
    return turn * rng.randint(4, 6) + f"{child}: Now?\n"


def equal_answers(rng: Random) -> str:
    said = f"Q: {_one(rng, BLANKS).strip('[]')}?\nA: Placeholder answer goes here, please replace.\n\n"
    return _asked(rng) + said * rng.randint(4, 6)


def signatures(rng: Random) -> str:
    block = "Signed in the presence of a witness: ______________\nDate and place of signature: ______________\n\n"
    return f"{paragraph(rng, 3)}\n\n" + block * rng.randint(4, 8)


def dances(rng: Random) -> str:
    figure = f"One step forward, one step back, turn to the {rng.choice(('left', 'right'))} and clap."
    return _asked(rng) + f"{figure}\n" * rng.randint(4, 8) + "Then bow."


TEMPLATES = (
    lines_to_write, numbered_lines, equal_steps, steps_in_turn, blanks, labelled_blanks, numbered_blanks,
    blanks_after_others, lorem_items, lorem_paragraphs, prayers, rounds, last_chorus, wordy_retries, equal_rows,
    equal_csv, equal_yaml, equal_json, equal_sql, equal_calls, equal_comments, equal_scenarios, equal_questions,
    equal_turns, equal_answers, signatures, dances,
)  # fmt: skip
