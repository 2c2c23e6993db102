"""Whole answers, as people ask for them, in which lines or sentences come again. None may be ended."""

from base64 import b64encode

_HAIL = (
    "Hail Mary, full of grace, the Lord is with thee. Blessed art thou amongst women, and blessed is the fruit of thy "
    "womb, Jesus. Holy Mary, Mother of God, pray for us sinners, now and at the hour of our death. Amen.\n\n"
)
_ROW = (
    "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is but a dream.\n\n"
)
_BUS = [("wheels", "go round and round"), ("wipers", "go swish swish swish"), ("doors", "go open and shut")]
_LOREM = "Lorem ipsum dolor sit amet, consectetur adipiscing elit."

ANSWERS = {
    # Markup, data and code
    "html list": "Here it is:\n```html\n<ul>\n" + f"  <li>{_LOREM}</li>\n" * 8 + "</ul>\n```\nChange it as you like.",
    "html in one line": "<ul>" + "<li>Write what this point is about here</li>" * 8 + "</ul>",
    "jsx without a fence": "return (\n  <ul>\n" + "    <li>Item description goes here</li>\n" * 6 + "  </ul>\n);",
    "lorem ipsum": f"Five paragraphs to fill your page.\n\n{(_LOREM + ' ' + _LOREM + chr(10) * 2) * 5}",
    "table": "| Day | Plan |\n|---|---|\n" + "| tbd | to be decided by the whole team during the week |\n" * 9,
    "json in one line": "[" + ", ".join(['{"name": "to be filled in", "text": "what the user likes most"}'] * 9) + "]",
    "json": "[\n" + ",\n".join(['  {\n    "title": "A title that you choose",\n    "done": false\n  }'] * 9) + "\n]",
    "yaml": "```yaml\nsteps:\n" + "  - name: wait for the service to be ready\n    run: wait now\n" * 8 + "```\nDone.",
    "csv": "name,city,status\n" + "Unknown,Springfield Illinois,active member since spring\n" * 10,
    "sql": "Run this:\n\n" + "INSERT INTO people SELECT name FROM staging WHERE active;\n" * 8,
    "comments": "```python\n" + "# Ask the user for a number and add it to the sum.\nadd(ask())\n" * 7 + "```\n",
    "scenarios": "Scenario: the page opens\n  Given the user is signed in\n  Then the title is shown\n\n" * 7,
    "commits": "```sh\n" + "git add everything and commit with the same message again\n" * 7 + "```",
    "docstrings": 'def f():\n    """Return what the parent class returns, unchanged."""\n\n\n' * 7,
    "subtitles": "".join(f"{at}\nYou are listening to the sound of the sea.\n\n" for at in range(1, 9)),
    # Forms and lists
    "checklist": "Before you go:\n"
    + "- [ ] Check that the window in this room is closed\n" * 9
    + "\nHave a good trip!",
    "names": "Guests\n" + "- [ ] Name: ____________________\n" * 20,
    "agenda": "Dear all,\n\nAgenda:\n" + "- Topic to be discussed by the whole team\n" * 7 + "\nKind regards",
    "agenda that has begun": "- Welcome the new members\n- Read the minutes\n"
    + "- Topic still to be decided by the board\n" * 6,
    "insert here": "Points:\n" + "".join(f"{at}. [Insert a key point with its evidence here]\n" for at in range(1, 10)),
    "survey": "".join(
        f"{at}. How satisfied are you with this part of the course?\n   Very satisfied\n   Satisfied\n   Not at all\n"
        for at in range(1, 9)
    ),
    "quiz": "".join(f"{at}. The statement is true or false, circle one.\nTrue\nFalse\n\n" for at in range(1, 9)),
    "questions and answers": "Q: What would you like to ask us here?\nA: Write the answer to it here.\n\n" * 6,
    "gratitude": "Today:\n\n" + "Today I am grateful for the people around me, because they ______.\n" * 7,
    "signatures": "The parties agree.\n\n" + "Signed by the tenant in the presence of a witness:\n\nDate:\n\n" * 5,
    "boilerplate": "Annexes\n\n" + "This page is intentionally left blank by the parties to this agreement.\n\n" * 7,
    # Things to do again
    "workout": "1. Warm up for five minutes.\n"
    + "".join(f"{at}. Run fast for one minute, then walk slowly for two minutes.\n" for at in range(2, 10))
    + "10. Cool down.",
    "knitting": "1. Cast on forty stitches.\n2. Knit the first row.\n"
    + "".join(f"{at}. Purl across all stitches to the end of the row.\n" for at in range(3, 10)),
    "rows in turn": "A scarf in stocking stitch.\n"
    + "".join(f"{at}. {('Knit', 'Purl')[at % 2]} across all stitches to the end of the row\n" for at in range(1, 10)),
    "breathing": "Breathe in slowly through your nose. Hold gently. Breathe out softly through your mouth. Rest.\n" * 8,
    "dance": "One step forward, one step back, turn to the left and clap.\n" * 8 + "Then bow.",
    "watering": "".join(f"Week {at}: water the plants in the morning and turn the pots.\n" for at in range(1, 13)),
    "chess": "A draw: " + " ".join(f"{at}. Nf3 Nf6 {at + 1}. Ng1 Ng8" for at in range(1, 17, 2)),
    # Said, sung and prayed
    "round": "Row, row, row your boat (a round for four):\n\n" + _ROW * 5,
    "bus": "\n\n".join(f"The {a} on the bus {b},\n{b}, {b},\nThe {a} on the bus {b},\nAll day." for a, b in _BUS),
    "last line": "The night is long, the road is far,\nI follow only one bright star,\n\n"
    + "And it will lead me home to you again\n" * 7
    + "(fade)",
    "last chorus": "We came from far away,\nWe came to stay,\n\n"
    + "Sing it again, sing it loud, sing it now,\n" * 4
    + "Hey!",
    "hey": "Chorus:\n" + "Na na na na, na na na na, hey now\n" * 10,
    "rosary": "A decade of the rosary:\n\n" + _HAIL * 10,
    "metta": "Sit down and close your eyes.\n\n" + "May all beings be happy, may all beings be at peace.\n" * 9,
    "kyrie": "Kyrie eleison. Christe eleison. Kyrie eleison. " * 12,
    "affirmations": "Say this every morning:\n" + "I am strong, I am calm, and I am enough as I am.\n" * 10,
    "tongue twister": 'Now say it five times: "' + "She sells sea shells by the sea shore. " * 5 + '" Well done!',
    "pantoum": "\n".join(
        f"The {word} is still, and the night is long,\nI hear the rain." for word in ["sea", "sky"] * 3
    ),
    "are we there": "Child: Are we there yet?\nDad: No, not yet, we will be there soon.\n" * 7 + "Child: Now?\n",
    "calls": "Host: Let us take the next caller on the line.\n" * 8,
    "stage": "SCENE\n" + "(The phone rings, nobody answers, and the light goes out.)\n" * 7 + "CURTAIN",
    "retries": "Log:\n"
    + "WARN connection refused by the database server, trying again soon\n" * 10
    + "INFO connected\n",
    "said retries": "Connecting.\n"
    + "The database server refused the connection, we try again soon.\n" * 10
    + "Connected.",
    "letters": "A sample letter follows.\n\n" + "Dear Sir or Madam, please find my application attached.\n\n" * 6,
    "bricks": ("|___" * 12 + "|\n" + "__|_" * 12 + "_\n") * 12,
    # Lines to write, in several languages
    "english": "I will not talk in class while the teacher speaks.\n" * 10,
    "english, numbered": "".join(f"{at}. I will not talk in class while the teacher speaks.\n" for at in range(1, 16)),
    "english, announced": "Write ten times: I will not talk in class.\n" + "I will not talk in class.\n" * 10,
    "german": "Gern!\n\n" + "Ich soll im Unterricht nicht mit meinem Nachbarn schwatzen.\n" * 10,
    "chinese": "好的:\n" + "我上课的时候不可以和我的同学讲话。\n" * 10,
    "hindi": "मैं कक्षा में अपने मित्रों से बात नहीं करूँगा।\n" * 10,
    "arabic": "لن أتحدث مع زملائي أثناء الدرس مرة أخرى.\n" * 10,
    "thai": "ฉันจะไม่คุยกับเพื่อนในขณะที่ครูกำลังสอนอยู่หน้าห้อง\n" * 10,
    # Written after the rule was made, to see what it ends
    "sourdough": (
        "1. Mix the flour, water and salt in a large bowl.\n2. Knead the dough for ten minutes "
        "until smooth.\n3. Cover it and let it rest for one hour.\n"
    )
    + "".join(f"{i}. Stretch and fold the dough, then let it rest for thirty minutes.\n" for i in range(4, 9))
    + "9. Bake.",
    "yoga": "".join(
        "Inhale and raise your arms above your head. Exhale and fold forward over your legs.\n\n" for _ in range(8)
    ),
    "lullaby": "Hush little baby, don't say a word,\nMama's gonna buy you a mockingbird,\n\n"
    + "Sleep, my little one, sleep, the stars are in the sky.\n" * 6,
    "worldhands": (
        "He's got the whole world in His hands,\nHe's got the whole wide world in His hands,\nHe's "
        "got the whole world in His hands,\nHe's got the whole world in His hands.\n\nHe's got the "
        "wind and the rain in His hands,\nHe's got the wind and the rain in His hands,\nHe's got "
        "the wind and the rain in His hands,\nHe's got the whole world in His hands.\n"
    ),
    "war": "Gonna lay down my burden,\nDown by the riverside,\nDown by the riverside,\nDown by the riverside,\n\n"
    + "I ain't gonna study war no more, study war no more,\nAin't gonna study war no more.\n" * 3,
    "jolly": (
        "For he's a jolly good fellow,\nFor he's a jolly good fellow,\nFor he's a jolly good "
        "fellow,\nWhich nobody can deny!\n"
    )
    * 3,
    "hindi mantra": "ॐ नमः शिवाय\n" * 30,
    "gayatri": "ॐ भूर्भुवः स्वः तत्सवितुर्वरेण्यं भर्गो देवस्य धीमहि धियो यो नः प्रचोदयात्॥\n\n" * 9,
    "quran": "بِسْمِ اللَّهِ الرَّحْمَٰنِ الرَّحِيمِ\n" * 10,
    "japanese": "授業中に友達と大きな声でおしゃべりをしません。\n" * 10,
    "korean": "나는 수업 시간에 친구들과 떠들지 않겠습니다.\n" * 10,
    "russian": "Ответьте: да или нет.\n" + "Я согласен с условиями договора и подписываю его.\n" * 8,
    "pytest": "```\n" + "tests/test_a.py::test_the_page_opens PASSED\n" * 10 + "```",
    "pytest nofence": "Output:\n" + "test the page opens and the title is shown ... ok\n" * 10,
    "gitlog": "".join(
        "commit\nAuthor: Ann Example\n\n    Fix the build on the main branch again\n\n" for _ in range(8)
    ),
    "prose log": "The server has started.\nThe configuration was read.\n"
    + "The worker could not reach the queue, and will try again soon.\n" * 9,
    "email thread": "Hi all,\n\nPlease find the minutes below.\n\n"
    + "Action: the team will follow up on this point next week.\n\n" * 7,
    "dockerfile": "RUN apt install the package and clean up afterwards\n" * 6,
    "gherkin steps": "Feature: login\n\n"
    + "  And the user clicks on the next button\n  And the user waits for the page\n" * 6,
    "sql values": "VALUES\n" + "('John Doe', 'Main Street', 'Springfield', 'active member'),\n" * 8,
    "xml": "<items>\n" + "  <item>Text of the item goes here for now</item>\n" * 8 + "</items>",
    "ini": "[servers]\n" + "name of server: to be filled in later on\n" * 8,
    "haiku": "An old silent pond,\nA frog jumps into the pond,\nSplash! Silence again.\n\n" * 5,
    "oath": "I, [name], do solemnly swear that I will support and defend the law.\n" * 6,
    "telephone": (
        "Agent: Thank you for calling, how may I help you today?\nCustomer: I would like to know about my order.\n\n"
    )
    * 5,
    "groundhog": "The alarm rang at six. He got up, brushed his teeth and went to work.\n\n" * 5
    + "Then, one day, it did not ring.",
    "groundhog2": "Every day was the same for him in the little town by the river.\n\n"
    + "The alarm rang at six. He got up, brushed his teeth and went to work.\n\n" * 5
    + "Then, one day, it did not ring.",
    "count sheep": "Count with me.\n" + "Another little sheep jumps over the fence and runs away.\n" * 10,
    "catch me": "\n\n".join(
        f"He met a {a}. \"Run, run, as fast as you can! You can't catch me, I'm the Gingerbread Man!\""
        for a in ["cow", "horse", "pig", "fox", "dog"]
    ),
    "meditation": (
        "Find a comfortable seat and let your hands rest in your lap, with your back straight.\n\n"
        "Close your eyes and notice your breath.\n\n"
    )
    + "Breathe in slowly through your nose for four counts. Hold for four. Breathe out for four. Hold.\n\n" * 6,
    "interval": "1. Jog for five minutes.\n2. Stretch your legs well.\n3. Jog for one minute.\n"
    + "".join(f"{i}. Sprint for thirty seconds, then walk for one minute.\n" for i in range(4, 10)),
    "swim": "Warm-up\n\n" + "Swim one length of crawl, rest for twenty seconds at the wall.\n" * 8 + "\nCool-down",
    "license": "".join(
        f"File {n}\n\nThis file is part of the project and may be used under the same terms as the rest of it.\n\n"
        for n in "abcdef"
    ),
    "refund": "Dear customer,\n\n"
    + "We are sorry for the delay and will refund the full amount within ten days.\n" * 4
    + "\nBest regards",
    "echo": '"Hello, is anybody there in the dark?" he called.\n' * 4 + "Nobody answered.",
    "md quote": "> Be kind, for everyone you meet is fighting a hard battle.\n" * 6,
    "footnotes": "".join(f"{i}. Ibid., see the first volume of the same work.\n" for i in range(1, 15)),
    "biblio": "".join(f"[{i}] Author, Title of the paper, Journal of the field, year.\n" for i in range(1, 15)),
    "flashcards": "Front: word in the foreign language\nBack: translation and an example sentence\n\n" * 8,
    "slides": "## Slide title\n\n- First point of the slide\n- Second point of the slide\n\n" * 6,
    "ul prose": "* Remember to save your work before you leave.\n" * 8,
    "roman": "".join(
        f"{r}. The party of the first part agrees to the terms above.\n"
        for r in ["I", "II", "III", "IV", "V", "VI", "VII", "VIII"]
    ),
    "oneline mantra": "Repeat after me: " + "I am calm, I am strong, I am ready for this day. " * 7,
    "oneline quote": "Bart writes “I will not waste chalk in class. " + "I will not waste chalk in class. " * 7 + "”",
    "stanza after": "\n".join(
        ["The river runs down to the sea,", "And carries all my dreams with me,", "The river sings its song,"]
    )
    + "\n\n"
    + ("Flow, river, flow, wherever you go,\nFlow, river, flow, take me along,\n\n") * 4,
    "twenty lines": "Sure! Here you go:\n\n"
    + "I will always do my homework before I go out to play with my friends.\n" * 20,
    "twenty in quotes": '"The quick brown fox jumps over the lazy dog."\n' * 20,
    "asserts": "```python\n" + "    self.assertEqual(result, expected)\n" * 25 + "```",
    "inserts": "INSERT INTO users (name, email) VALUES ('John Doe', 'john@example.com');\n" * 20,
    "dialogue": "User: Hello\nAssistant: Hello! How can I help you today?\n" * 20,
    "hare": "Hare Krishna, Hare Krishna, Krishna Krishna, Hare Hare,\nHare Rama, Hare Rama, Hare Hare.\n\n" * 17,
    "base64": b64encode(b"The quick brown fox jumps over the lazy dog. " * 30).decode(),
}
