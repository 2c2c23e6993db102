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
    "words": (STORY, "over and over again, ", 40),
    "sorry": ("", "I am sorry. ", 260),
    "a smile": ("", "\U0001f600", 800),
}
"""It may have been asked for: what was said before, what repeats, and the most times that it may be said."""
