"""Words, names and sentences that ordinary texts are made of."""

from random import Random

NOUNS = [
    "harbour", "engine", "window", "letter", "garden", "budget", "teacher", "river", "kitchen", "signal",
    "market", "winter", "bridge", "customer", "library", "report", "captain", "station", "orchard", "question",
    "battery", "contract", "mountain", "neighbour", "database", "recipe", "festival", "journey",
]  # fmt: skip
VERBS = [
    "opens", "carries", "follows", "repairs", "describes", "crosses", "measures", "keeps", "paints", "changes",
    "reaches", "collects", "sends",
]  # fmt: skip
ADJECTIVES = [
    "quiet", "heavy", "early", "bright", "narrow", "patient", "old", "new", "careful", "distant", "small",
    "broken", "steady", "warm", "blue",
]  # fmt: skip
PLACES = [
    "near the old mill", "in the evening", "before the meeting", "at the end of the street", "without a word",
    "for years",
]  # fmt: skip
NAMES = [
    "Ada", "Bruno", "Chen", "Dilek", "Emeka", "Freya", "Goran", "Hanna", "Ivo", "Jamila", "Kofi", "Lena",
    "Milos", "Noor", "Olga", "Pavel", "Rosa", "Sven",
]  # fmt: skip
OPENINGS = [
    "However,", "In the end,", "That is why", "As a rule,", "Meanwhile,", "Of course,", "Strictly speaking,",
    "For example,",
]  # fmt: skip
GERMAN = "Der Hafen ist still|Die Nacht war lang|Wir gehen nach Hause|Das Fenster steht offen|Der Wind wird stärker"
CHINESE = "山水月夜風花雪鳥海雲春秋江樓人天長思歸客行路遠近明暗"


def sentence(rng: Random) -> str:
    opening = f"{rng.choice(OPENINGS)} the" if rng.random() < 0.3 else "The"
    parts = [opening, rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(VERBS), "the", rng.choice(NOUNS)]
    if rng.random() < 0.5:
        parts.append(rng.choice(PLACES))
    return " ".join(parts) + "."


def paragraph(rng: Random, sentences: int) -> str:
    return " ".join(sentence(rng) for _ in range(sentences))


def phrase(rng: Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def name(rng: Random) -> str:
    return rng.choice(NAMES)
