"""The contract of an image judge: each rule catches a judge that breaks it and no other, in its own words."""

import asyncio
import dataclasses
import itertools
import json
import math

import pytest

from bpals.errors import ContractBroken, JudgeError
from bpals.findings import NIH, Vocabulary
from bpals.judges.function import judge
from bpals.judges.stub import StubJudge
from bpals.testing import check_image_judge, tiny_film
from bpals.types import JudgeCard, Question, Reply
from world.words import mentions

CARD = JudgeCard(
    judge="sound", kind="image", version="1", trained_on_target="no", evidence="trained on nothing", licence="MIT"
)


class Sound:
    """A judge that keeps every promise; those below each break one."""

    card = CARD

    def questions(self, vocabulary):
        """Both polarities of each finding."""
        return tuple(Question(subject=f, polarity=p) for f in vocabulary.findings for p in self.card.polarities)

    def ask(self, film, questions):
        """By the length of the picture and of the finding's name."""
        if film is None:
            return [Reply(outcome="unsupported", why="no film") for _ in questions]
        if not film.png.startswith(b"\x89PNG"):
            raise ValueError(film.sha256)
        return [self.reply(film, question) for question in questions]

    def reply(self, film, question):
        """One reply."""
        if question.subject not in NIH.findings:
            return Reply(outcome="unsupported", why="unknown finding")
        logit = (len(film.png) % 97) / 97 - len(question.subject) / 10
        return Reply(outcome="answered", logit=logit if question.polarity == "present" else -logit, mass=0.97)


def with_card(**changes):
    """The sound judge with another card."""
    made = Sound()
    made.card = dataclasses.replace(CARD, **changes)
    return made


def with_reply(**changes):
    """The sound judge whose replies about Hernia are other ones."""

    class Other(Sound):
        def reply(self, film, question):
            reply = super().reply(film, question)
            return dataclasses.replace(reply, **changes) if question.subject == "Hernia" else reply

    return Other()


class NewCard(Sound):
    """Another judge each time it is looked at."""

    numbers = itertools.count()

    @property
    def card(self):
        """Count how often it was looked at."""
        return dataclasses.replace(CARD, settings={"n": next(self.numbers)})


class Learner(Sound):
    """Another judge once it was asked."""

    asked = 0

    @property
    def card(self):
        """Count the films seen."""
        return dataclasses.replace(CARD, settings={"n": self.asked})

    def ask(self, film, questions):
        """Remember."""
        self.asked += 1
        return super().ask(film, questions)


class Forgetful(Sound):
    """Loses the last reply."""

    def ask(self, film, questions):
        """All but one."""
        return super().ask(film, questions)[:-1]


class Mapper(Sound):
    """Gives a dict."""

    def ask(self, film, questions):
        """By finding."""
        return dict(zip(questions, super().ask(film, questions), strict=True))


class Orderly(Sound):
    """Replies in an order of its own."""

    def ask(self, film, questions):
        """As the vocabulary has them."""
        place = sorted(questions, key=lambda q: NIH.findings.index(q.subject) if q.subject in NIH.findings else 99)
        return super().ask(film, place)


class Moody(Sound):
    """Says something else each time."""

    moods = itertools.count()

    def reply(self, film, question):
        """A little more each time."""
        return dataclasses.replace(super().reply(film, question), logit=float(next(self.moods)))


class Guesser(Sound):
    """Answers about anything."""

    def reply(self, film, question):
        """Whatever the name is."""
        return Reply(outcome="answered", logit=len(film.png) / 1e4, text=question.subject)


class NeedsFilm(Sound):
    """Falls over without a film."""

    def ask(self, film, questions):
        """Look at it first."""
        return super().ask(film, questions) if film.png else []


class SeesNothing(Sound):
    """Answers about what is no picture."""

    def ask(self, film, questions):
        """Without opening it."""
        png = film and dataclasses.replace(film, png=b"\x89PNG" + film.png)
        return super().ask(png, questions)


class StopsAll(Sound):
    """Takes one bad film for the end of the run."""

    def ask(self, film, questions):
        """Raise what stops a run."""
        if film is not None and not film.png.startswith(b"\x89PNG"):
            raise JudgeError("no picture. Give another")
        return super().ask(film, questions)


class Thief(Sound):
    """Empties the list it is handed."""

    def ask(self, film, questions):
        """Take the questions away."""
        replies = super().ask(film, questions)
        questions.clear()
        return replies


class Chooser(Sound):
    """Does not ask about Hernia."""

    def questions(self, vocabulary):
        """All but one."""
        return tuple(question for question in super().questions(vocabulary) if question.subject != "Hernia")


class Stutterer(Sound):
    """Asks twice."""

    def questions(self, vocabulary):
        """All, twice."""
        return super().questions(vocabulary) * 2


class Wanderer(Sound):
    """Asks about what is not audited."""

    def questions(self, vocabulary):
        """One more."""
        return (*super().questions(vocabulary), Question(subject="Fracture"))


class Fickle(Sound):
    """Lists other questions each time."""

    turns = itertools.count()

    def questions(self, vocabulary):
        """Worded anew."""
        turn = str(next(self.turns))
        return tuple(dataclasses.replace(question, text=turn) for question in super().questions(vocabulary))


class Lister(Sound):
    """Gives a list."""

    def questions(self, vocabulary):
        """As a list."""
        return list(super().questions(vocabulary))


class NoCard(Sound):
    """Says who it is in a dict."""

    card = {"judge": "sound"}  # noqa: RUF012  a wrong card is what is tested


BROKEN = {
    "card: a dict is no JudgeCard": NoCard(),
    "card: kind is 'record'": with_card(kind="record"),
    "card: a judge cannot be called 'My Judge'": with_card(judge="My Judge"),
    "card: version is empty": with_card(version=""),
    "card: licence is empty": with_card(licence=""),
    "card: trained_on_target is 'maybe'": with_card(trained_on_target="maybe"),
    "card: trained_on_target is 'no', and evidence does not say": with_card(evidence=" "),
    "card: commercial_use is True": with_card(commercial_use=True),
    "card: polarities are ()": with_card(polarities=()),
    "card: it cannot be written down": with_card(settings={"model": object()}),
    "card: it holds 0x7f12ab34cd56, a place in memory": with_card(settings={"model": "<Model at 0x7f12ab34cd56>"}),
    "card: the fingerprint is another after the judge was asked": Learner(),
    "questions: asked twice, the judge lists other questions": Fickle(),
    "questions: not a tuple of Question": Lister(),
    "questions: finding, Atelectasis, present, a stands there twice": Stutterer(),
    "questions: 'Fracture' is no finding of nih": Wanderer(),
    "questions: Hernia is not asked as present": Chooser(),
    "ask: 27 replies to 28 questions": Forgetful(),
    "replies to 28 questions: give one per question, in order": Mapper(),
    "ask: the judge changed the list of questions": Thief(),
    "ask: Hernia, present: 'perhaps' is none of the six outcomes": with_reply(outcome="perhaps", logit=None),
    "ask: Hernia, present: a judge does not reply failed": with_reply(outcome="failed", logit=None, why="x"),
    "ask: Hernia, present: refused, and a logit of": with_reply(outcome="refused", why="x"),
    "ask: Hernia, present: answered, and no logit": with_reply(logit=None),
    "ask: Hernia, present: the logit nan is no finite number": with_reply(logit=math.nan),
    "ask: Hernia, present: the logit inf is no finite number": with_reply(logit=math.inf),
    "ask: Hernia, present: the logit '1' is no finite number": with_reply(logit="1"),
    "ask: Hernia, present: the mass 1.5 is not from 0 to 1": with_reply(mass=1.5),
    "ask: Hernia, present: abstained, and nothing says why": with_reply(outcome="abstained", logit=None),
    "ask: asked the same twice about Atelectasis, it replied": Moody(),
    "ask: asked in another order about Atelectasis, it replied": Orderly(),
    "ask: about 'Not_A_Finding', which is no finding, it replied answered": Guesser(),
    "ask: without an image it raises AttributeError": NeedsFilm(),
    "ask: it answered about an image that cannot be opened": SeesNothing(),
    "ask: an image that cannot be opened raises JudgeError, which stops a whole run": StopsAll(),
}


def test_a_sound_judge_passes_without_a_remark():
    """The judge that the broken ones differ from, also when it is made a second time."""
    assert check_image_judge(Sound(), again=Sound()) == ()


@pytest.mark.parametrize("words", BROKEN)
def test_a_broken_judge_is_told_what_is_broken(words):
    """One judge a rule, one line a judge."""
    with pytest.raises(ContractBroken) as caught:
        check_image_judge(BROKEN[words])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_second_instance_must_be_the_same_judge():
    """The fingerprint is stable over calls and instances."""
    with pytest.raises(ContractBroken, match="another fingerprint"):
        check_image_judge(Sound(), again=with_card(settings={"seed": 2}))
    with pytest.raises(ContractBroken, match="fingerprint"):
        check_image_judge(NewCard())


def test_a_judge_of_any_finding_may_answer_about_whatever_has_a_name():
    """A model that reads the name is not guessing; whoever checks it says so."""
    assert check_image_judge(Guesser(), any_finding=True) == ()
    assert check_image_judge(StubJudge(), any_finding=True) == ()


def test_what_is_odd_but_allowed_is_a_remark():
    """A judge that says the same of every film, or nothing at all, is told so and not refused."""
    same = judge("same", findings=NIH.findings)(lambda _image, _finding: 0.5)
    assert [mentions(line, "same", "every film") for line in check_image_judge(same)] == [True]
    mute = judge("mute")(lambda _image, _finding: None)
    assert [mentions(line, "answered no question") for line in check_image_judge(mute)] == [True]


def test_films_and_a_vocabulary_of_your_own():
    """The contract runs on what the judge is made for."""
    mine = judge("mine", findings=["Fracture"])(lambda image: {"Fracture": image.getpixel((3, 3)) / 255})
    films = [tiny_film(grey=10), tiny_film(grey=200)]
    assert check_image_judge(mine, Vocabulary(name="v", findings=("Fracture",)), films) == ()


class Behind(Sound):
    """The sound judge behind an endpoint, which the line stands for."""

    ask = property()
    at_once = 5

    async def ask_line(self, film, questions, line):
        """Send each question on its way, and read what comes back."""
        assert len(questions) <= self.at_once
        said = await line.post(json.dumps(len(questions)).encode(), lambda body: body["n"])
        return (Sound.ask(self, film, questions))[:said]


class Echo:
    """A line to a server that counts."""

    image_sent = False

    async def post(self, body, read):
        """Give back the number, later."""
        await asyncio.sleep(0)
        return read({"n": json.loads(body)})


def test_a_judge_behind_an_endpoint_is_asked_through_a_line():
    """A new line for each film, at most `at_once` questions a time; without one the check says what it needs."""
    made = []

    def line():
        made.append(Echo())
        return made[-1]

    assert check_image_judge(Behind(), line=line) == ()
    assert len(made) >= 5
    with pytest.raises(ContractBroken, match="hand in line="):
        check_image_judge(Behind())
