"""Answers that have run away: what was said before, and what is said again and again."""

from random import Random

from tests.ordinary.words import paragraph

SEA = "The sea is a vast and mysterious realm, and no fisherman has ever seen the other end of it."
STORY = "Once there was a fisherman who lived by the sea. He was poor, and the sea was all that he had. "
POEM = "The sea is wide, the sea is deep,\nIt sings the fishermen to sleep,\n"
LOOPS: dict[str, tuple[str, str]] = {
    "a sentence": (STORY, f"{SEA} "),
    "a sentence from the first word on": ("", f"{SEA} "),
    "a clause": (STORY, "and he went down to the sea with his net again, "),
    "two sentences": (STORY, f"{SEA} So he took his net and went down to the water. "),
    "paragraphs that end alike": (
        f"{STORY}{SEA} He took his net.",
        f"\n\nThe fisherman went out at night. {SEA} He took his net.",
    ),
    "a paragraph about the same": (
        f"{STORY}\n\n",
        "The fisherman who lived by the sea was as poor as before, and all that he had was still the sea.\n\n",
    ),
    "long paragraphs": (f"{STORY * 2}\n\n{paragraph(Random(9), 5)}\n\n", f"{paragraph(Random(8), 6)}\n\n"),
    "the end of a paragraph": (f"{STORY}{SEA}\n\n", f"{SEA}\n\n"),
    "a verse": (POEM, "A place where the soul can find the light,\n"),
    "a stanza": (POEM, "The sea, a lover of the moon,\nShe calls him and he answers soon,\nThe sea.\n\n"),
    "a few words of a sentence": (STORY[:-2], ", and he was very brave"),
    "a few words of a sentence in json": ('{"text": "The sea is wide and deep', ", teeming with life and light"),
    "a few words after a quotation": (f'"Where is my net?" he said. {STORY[:-2]}', ", and he was very brave"),
    "a few words after another": (f"{STORY}It is the fisherman's own 'sea', the sea", " of all the old men"),
    "a few words of a verse": (POEM, "A game of fate, a game of fate,\n"),
    "a short sentence of the paragraph before": (
        f"{STORY}Nobody had asked him about his boat.\n\n",
        "Nobody had asked him about his boat.\n\n",
    ),
    "a paragraph about what was said before the last": (
        f"{STORY}\n\nNobody had asked him about his boat, and so he did not tell anybody about his boat.\n\n",
        "The fisherman who lived by the sea was as poor as before, and all that he had was still the sea.\n\n",
    ),
    "paragraphs with names of a program": (
        "The function `make_sea()` returns the sea. It is called by the function `make_world()` below the sky.\n\n",
        "The function `make_sea()` is called by `make_world()`, and the function returns a sea below the sky.\n\n",
    ),
    "what is said about a program": (
        "This makes a sea.\n\n",
        "You can make a sea as follows:\n\n```python\nprint(make_sea())\n```\n\nThis prints the sea, which is a list "
        "of waves, each of them with a height and a time at which it comes.\n\n* **Limited depth**: none at all.\n\n",
    ),
    "numbered items from the first on": (
        "",
        "1. The sea is vast and deep, and it covers more of the planet than all of the land together.\n",
    ),
    "a poem from the first word on": (
        "",
        "\n".join(
            f"The {word} is wide, the {word} is deep, it sings to me,"
            for word in ["sea", "sky", "bay", "fog", "dew", "sun", "ice"]
        )
        + "\nAnd all of them have been with me since I was small, and then again when I came home.\n\n",
    ),
    "a list in circles": (
        "You need:\n\n- a boat\n",
        "- 1/2 cup fresh parsley\n- 1/4 cup dried basil\n- 1 spoon of ground cloves\n- 2 spoons of salt\n",
    ),
    "a table in circles": (
        "| a | b |\n|---|---|\n",
        "| New York | Ravens |\n| San Diego | Giants |\n| Tampa | Rams |\n",
    ),
    "an item after many others": (
        "".join(
            f"- A {word} that is red\n" for word in ["boat", "house", "flag", "door", "car", "bird", "wall", "tree"]
        ),
        "- A small cup of sugar\n- A large cup of sugar\n",
    ),
    "imports": ("```python\nimport os\n", "import boats.colours.green\nfrom boats import sails\n"),
    "chinese": ("大海很大。", "我是一个人工智能助手，我可以回答你的问题并帮助你完成任务。"),
    "japanese": ("海は広い。", "私はあなたの質問に答えるためにここにいますので何でも聞いてください。"),
    "hindi": ("समुद्र बड़ा है। ", "मैं आपकी सहायता करने के लिए यहाँ हूँ और आपके प्रश्नों का उत्तर दूँगा। "),
    "bengali": ("সমুদ্র বড়। ", "আমি আপনাকে সাহায্য করার জন্য এখানে আছি এবং আপনার প্রশ্নের উত্তর দেব। "),
    "tamil": ("கடல் பெரியது. ", "நான் உங்களுக்கு உதவ இங்கே இருக்கிறேன் உங்கள் கேள்விகளுக்கு பதில் அளிப்பேன். "),
    "thai": ("ทะเลกว้างใหญ่ ", "ฉันยินดีที่จะช่วยเหลือคุณในทุกคำถามที่คุณมีเกี่ยวกับเรื่องนี้ "),
    "burmese": ("ပင်လယ် ", "ကျွန်ုပ်သည် သင့်မေးခွန်းများကို ဖြေကြားရန် ဤနေရာတွင် ရှိပါသည်။ "),
    "arabic": ("البحر واسع. ", "أنا هنا لمساعدتك في كل ما تحتاجه اليوم وسأجيب عن أسئلتك. "),
    "arabic with vowels": ("البَحْرُ وَاسِعٌ. ", "أَنَا هُنَا لِمُسَاعَدَتِكَ فِي كُلِّ مَا تَحْتَاجُهُ اليَوْمَ. "),
    "hebrew with vowels": ("הַיָּם גָּדוֹל. ", "אֲנִי כָּאן כְּדֵי לַעֲזוֹר לְךָ בְּכָל שְׁאֵלָה שֶׁיֵּשׁ לְךָ הַיּוֹם. "),
    "decomposed": (
        "La mer. ",
        "Je suis e\u0301te\u0301 ici pour vous aider a\u0300 re\u0301pondre a\u0300 toutes les questions. ",
    ),
    "a long paragraph from the first word on": ("", f"{paragraph(Random(7), 6)}\n\n"),
    "members of an object": ('{\n  "name": "Bread",\n', '  "origin": "Bread was first made in the east.",\n'),
    "prose in json": (
        '```json\n{"text": "The sea is wide',
        ", with the sea being a place of endless wonder and mystery",
    ),
}

LATE: dict[str, tuple[str, str, int]] = {
    "a line": ("", "I will not talk in class while the teacher speaks.\n", 30),
    "a checklist": ("Before you go:\n", "- [ ] Check that the window in this room is closed\n", 30),
    "a log": ("Log:\n", "WARN connection refused by the database server, trying again soon\n", 30),
    "json": ("[", '{"name": "to be filled in", "text": "what the user likes most"}, ', 60),
    "code": ("```c\n", "    if (value == null) { return null; }\n", 80),
    "html": ("<ul>\n", "  <li>Write what this point is about here</li>\n", 30),
    "a table": ("| a | b |\n|---|---|\n", "| to be decided | by the whole team in the coming week |\n", 30),
    "a round": ("", "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily,\nLife is a dream.\n\n", 30),
    "words": ("", "over and over again, ", 60),
    "words in quotation marks": (f'{STORY}He sang, "', "over and over again, ", 60),
    "words in a quotation": (f'{STORY}He sang, "O sea, I will come ', "over and over again, ", 60),
    "words in other quotation marks": (f"{STORY}He sang, “O sea, I will come ", "over and over again, ", 60),
    "words in french quotation marks": (f"{STORY}He sang, «O sea, I will come ", "over and over again, ", 60),
    "words in single quotation marks": (f"{STORY}He sang, 'O sea, I will come ", "over and over again, ", 60),
    "two words": (STORY, "and over ", 90),
    "verses after a gap": (f"{POEM}\n", "Over and over again,\n", 60),
    "a short sentence after a gap": (f"{STORY}\n\n", "Thy will be done here on earth. ", 40),
    "a prayer": ("", f"{STORY * 2}And so it was. Amen.\n\n", 30),
    "a prayer in parts": ("", f"Leader:\n{STORY * 2}And so it was.\nAll:\nAmen.\n\n", 30),
    "a long paragraph in a fence": ("```\n", f"{STORY * 2}And so it was.\n\n=====\n", 30),
    "an item after some others": ("- A boat that is red\n- A red house\n", "- A small cup of sugar\n", 60),
    "fields to fill in": ("", "- Name: ____\n- Street: ____\n- Town or city: ____\n- How you like it: ____\n", 60),
    "cards": ("", f"<div>\n<h1>Sea</h1>\n{STORY * 2}And so it was.\n</div>\n", 30),
    "sorry": ("", "I am sorry. ", 260),
    "a smile": ("", "\U0001f600", 800),
}
"""It may have been asked for: what was said before, what repeats, and the most times that it may be said."""
