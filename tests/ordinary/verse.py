"""Prose, poems and songs: where people repeat themselves on purpose."""

from random import Random

from tests.ordinary.words import ADJECTIVES, CHINESE, GERMAN, NOUNS, VERBS, name, paragraph, phrase, sentence


def essay(rng: Random) -> str:
    return "\n\n".join(paragraph(rng, rng.randint(3, 7)) for _ in range(rng.randint(2, 8)))


def refrain(rng: Random) -> str:
    chorus = "\n".join(sentence(rng) for _ in range(4))
    return "\n\n".join(f"{chr(10).join(sentence(rng) for _ in range(4))}\n\n{chorus}" for _ in range(rng.randint(3, 8)))


def double_chorus(rng: Random) -> str:
    """The last chorus is sung twice."""
    chorus = "\n".join(sentence(rng) for _ in range(rng.randint(2, 4)))
    return f"{paragraph(rng, 4)}\n\n{chorus}\n\n{paragraph(rng, 4)}\n\n{chorus}\n\n{chorus}\n"


def fade_out(rng: Random) -> str:
    """A song's last short line, again and again."""
    line = rng.choice(
        ("Let it go", "We will, we will sing", "Oh, my love", "Come back home", "All night long", "Hey now")
    )
    return f"{paragraph(rng, 3)}\n\n" + f"{line}\n" * rng.randint(3, 8)


def nonsense(rng: Random) -> str:
    sound = rng.choice(("na ", "la ", "doo ", "ha ", "oh ", "hey, ", "yeah, ", "boom ", "fa la la "))
    return "\n".join(f"{sound * rng.randint(3, 12)}\n{sentence(rng)}" for _ in range(rng.randint(2, 8)))


def laughter(rng: Random) -> str:
    sound = rng.choice(("ha", "he", "😂", "👏", "z", "!", "no", "哈"))
    return f"{sentence(rng)} {sound * rng.randint(5, 40)} {sentence(rng)}"


def long_vowel(rng: Random) -> str:
    return f"{name(rng)}: N{'o' * rng.randint(5, 60)}{'!' * rng.randint(1, 30)} {sentence(rng)}"


def bottles(rng: Random) -> str:
    """Counts down in verses that are otherwise the same."""
    thing, top = f"{rng.choice(ADJECTIVES)} bottles", rng.randint(5, 20)
    verse = "{0} {1} hanging on the wall,\n{0} {1} hanging on the wall,\nAnd if one of them should accidentally fall,\n"
    return "\n".join(
        verse.format(left, thing) + f"There'll be {left - 1} {thing} hanging on the wall.\n"
        for left in range(top, 0, -1)
    )


def litany(rng: Random) -> str:
    answer = rng.choice(("pray for us", "have mercy on us", "we remember you", "we thank you"))
    return "\n".join(f"{name(rng)} of the {rng.choice(NOUNS)}, {answer}." for _ in range(rng.randint(8, 40)))


def anaphora(rng: Random) -> str:
    start = f"I have a {rng.choice(NOUNS)} that one day the"
    return " ".join(
        f"{start} {phrase(rng)} {rng.choice(VERBS)} the {rng.choice(NOUNS)}." for _ in range(rng.randint(4, 15))
    )


def cumulative(rng: Random) -> str:
    """Each verse is the one before, and a line more: the house that Jack built."""
    lines: list[str] = []
    verses = []
    for _ in range(rng.randint(5, 10)):
        lines.insert(0, f"that {rng.choice(VERBS)} the {phrase(rng)}")
        verses.append("This is the " + rng.choice(NOUNS) + "\n" + "\n".join(lines))
    return "\n\n".join(verses)


def mantra(rng: Random) -> str:
    line = rng.choice(("Om mani padme hum", "Hare Rama, Hare Rama", "Breathe in, breathe out", "One day at a time"))
    return f"{sentence(rng)}\n\n" + f"{line}.\n" * rng.randint(3, 9) + sentence(rng)


def punishment(rng: Random) -> str:
    """The same sentence a few times, as asked for."""
    return f"{sentence(rng)}\n" * 3 + sentence(rng)


def german(rng: Random) -> str:
    lines = GERMAN.split("|")
    return "\n\n".join("\n".join([rng.choice(lines) for _ in range(3)] + [lines[0]]) for _ in range(rng.randint(4, 12)))


def chinese(rng: Random) -> str:
    lines = ["".join(rng.sample(CHINESE, 7)) for _ in range(8)]
    return "。\n".join(lines + lines[:2] + ["".join(rng.sample(CHINESE, 7)) for _ in range(8)])


def counting(rng: Random) -> str:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return " ".join(f"{word} Mississippi," for word in words) + " " + "5, 6, 7, 8, " * rng.randint(1, 6) + sentence(rng)


def story_with_sounds(rng: Random) -> str:
    sound = rng.choice(("Tick, tock. ", "Drip. ", "Knock, knock, knock. ", "Chug-a-chug-a "))
    return " ".join(f"{sentence(rng)} {sound * rng.randint(2, 8)}" for _ in range(rng.randint(4, 10)))


def email(rng: Random) -> str:
    person = name(rng)
    quoted = "\n".join(f"> {sentence(rng)}" for _ in range(4))
    return f"Dear {person},\n\n{paragraph(rng, 3)}\n\nBest regards,\n{name(rng)}\n\n{quoted}\n" * rng.randint(1, 2)


VERSE = (
    essay, refrain, double_chorus, fade_out, nonsense, laughter, long_vowel, bottles, litany, anaphora,
    cumulative, mantra, punishment, german, chinese, counting, story_with_sounds, email,
)  # fmt: skip
