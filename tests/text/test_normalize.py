"""What a person types comes out as words that a small English voice can read."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonant.errors import BadText
from sonant.text.normalize import normalize_english

PLAIN = re.compile(r"[A-Za-z][A-Za-z ,.?!;:'-]*[.?!]")

CASES = {
    "numbers": [
        ("0 and 7 and 13 and 21 and 100.", "zero and seven and thirteen and twenty one and one hundred."),
        ("1,234,567 stars.", "one million two hundred thirty four thousand five hundred sixty seven stars."),
        ("4692 trees.", "four thousand six hundred ninety two trees."),
        ("007", "zero zero seven."),
        ("1234567890123456", "one two three four, five six seven eight, nine zero one two, three four five six."),
        ("Pi is 3.14, half is .5 and 0.5.", "Pi is three point one four, half is point five and zero point five."),
        ("-5 degrees", "minus five degrees."),
        ("Version 1.2.3", "Version one point two point three."),
        ("10-20 people", "ten to twenty people."),
        ("10 - 5 = 5, 9-3-2=4", "ten minus five equals five, nine minus three minus two equals four."),
        ("8/2=4, 7 − 3 is 4", "eight divided by two equals four, seven minus three is four."),
        ("the 1st, 2nd, 3rd and 12th", "the first, second, third and twelfth."),
        ("THE 21ST CENTURY", "The twenty first century."),
        ("On May 3RD, 2024, the 2ND time", "On May third, twenty twenty four, the second time."),
        ("the 21st and 100th", "the twenty first and one hundredth."),
        ("It won 3:1.", "It won three to one."),
        ("MP3, H2O, 4x4", "M P three, H two O, four by four."),
        ("#5 and No. 6", "number five and number six."),
        ("5 million", "five million."),
        ("10k runners", "ten thousand runners."),
        ("B-52s, F-16s and MP3s: a 5s clip", "B-fifty twos, F-sixteens and M P threes: a five seconds clip."),
        ("١٢ and １２", "twelve and twelve."),
    ],
    "years": [
        ("in 1905, 1999 and 2000", "in nineteen oh five, nineteen ninety nine and two thousand."),
        ("in 2005 and 2024", "in two thousand five and twenty twenty four."),
        ("In 1066 he came.", "In ten sixty six he came."),
        ("1500 horses in 1500", "one thousand five hundred horses in fifteen hundred."),
        ("the 1990s and the '80s", "the nineteen nineties and the eighties."),
    ],
    "dates": [
        ("3 May 2024", "the third of May twenty twenty four."),
        ("The 3rd of May", "The third of May."),
        ("2024-05-03", "May third, twenty twenty four."),
        ("May 3rd, Feb 29th", "May third, February twenty ninth."),
        ("On Sept. 5, 1999 he left.", "On September fifth, nineteen ninety nine he left."),
        ("5/3/2024 and 13/5/2024", "May third, twenty twenty four and May thirteenth, twenty twenty four."),
        ("25 Dec 2020", "the twenty fifth of December twenty twenty."),
        ("March 2024 was wet.", "March twenty twenty four was wet."),
        ("3 may be enough", "three may be enough."),
    ],
    "times": [
        ("3:45 pm or 6.05 a.m.", "three forty five P M or six oh five A M."),
        ("7:00 a.m.", "seven A M."),
        ("7:00, 7:05 and 15:30", "seven o'clock, seven oh five and fifteen thirty."),
        ("It opens at 7 a.m. and closes at 5pm.", "It opens at seven A M and closes at five P M."),
        ("It ends at 7 p.m. The door shuts.", "It ends at seven P M. The door shuts."),
    ],
    "ranges": [
        ("9am-5pm, 9:00-17:00", "nine A M to five P M, nine o'clock to seventeen hundred."),
        ("9-5:30 p.m. or 10:00–11:30 a.m.", "nine to five thirty P M or ten o'clock to eleven thirty A M."),
        ("Mon-Fri, Sat.–Sun., Tuesday-Thursday", "Monday to Friday, Saturday to Sunday, Tuesday to Thursday."),
        ("10-20 in 2010 2012 2014", "ten to twenty in twenty ten twenty twelve twenty fourteen."),
        ("03-05-2024", "March fifth, twenty twenty four."),
    ],
    "money": [
        ("$3.50", "three dollars and fifty cents."),
        ("$1 and $0.99", "one dollar and ninety nine cents."),
        ("$1,234.56", "one thousand two hundred thirty four dollars and fifty six cents."),
        ("£1.2 million and €5 and ¥500", "one point two million pounds and five euros and five hundred yen."),
        ("The balance is -$50, and -£3.", "The balance is minus fifty dollars, and minus three pounds."),
        ("$.50 or $1-$5 or $1 - $5", "fifty cents or one to five dollars or one to five dollars."),
        ("$20/month, €5k/yr, 3/day", "twenty dollars per month, five thousand euros per year, three per day."),
        ("$-5 and C$50 but US$5", "minus five dollars and C fifty dollars but five dollars."),
        ("$5-10, 20€, $5M", "five to ten dollars, twenty euros, five million dollars."),
    ],
    "units": [
        ("5 km, 10kg and 60 mph", "five kilometers, ten kilograms and sixty miles per hour."),
        ("1 lb and 2 lbs", "one pound and two pounds."),
        ("a 5-km run", "a five kilometer run."),
        ("5 ft. tall, 6 m², 50 km/h", "five feet tall, six square meters, fifty kilometers per hour."),
        ("20°C or 68 °F or 5°", "twenty degrees Celsius or sixty eight degrees Fahrenheit or five degrees."),
        # With the micro sign, and with the Greek letter.
        ("5 µg, 5 μg, 10μm", "five micrograms, five micrograms, ten micrometers."),
        ("5 μs and 250 μL in Μουσείο", "five microseconds and two hundred fifty microliters in Moyseio."),
        ("5%-10%, 20°-30°", "five percent to ten percent, twenty degrees to thirty degrees."),
        ("20°C-30°C", "twenty degrees Celsius to thirty degrees Celsius."),
        ("20% and 20.5 %", "twenty percent and twenty point five percent."),
        ("5'10\"", "five foot ten."),
        ("9.8 m/s² and 1 m/s^2", "nine point eight meters per second squared and one meter per second squared."),
    ],
    "fractions": [
        ("1/2, 3/4, 2/3", "one half, three quarters, two thirds."),
        ("1 1/2 cups and 2½ cups", "one and a half cups and two and a half cups."),
        ("24/7", "twenty four seven."),
    ],
    "telephones": [
        ("555-123-4567", "five five five, one two three, four five six seven."),
        ("(555) 123-4567", "five five five, one two three, four five six seven."),
        ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight."),
        ("4242 4242 4242 4242", "four two four two, four two four two, four two four two, four two four two."),
        ("Call 4155552671 now", "Call four one five, five five five, two six seven one now."),
        ("Your code is 482913.", "Your code is four eight two, nine one three."),
        ("ZIP code 94105, ticket #4821", "Zip code nine four one zero five, ticket number four eight two one."),
        ("The code is 500 lines long.", "The code is five hundred lines long."),
        ("8000000000 people", "eight billion people."),
        ("1000000001 bytes", "one billion one bytes."),
        ("The code is 48-21-97. Call 911.", "The code is four eight, two one, nine seven. Call nine one one."),
        ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight."),
    ],
    "roman numerals": [
        ("Henry VIII and Louis XIV", "Henry the eighth and Louis the fourteenth."),
        ("Elizabeth I, queen", "Elizabeth the first, queen."),
        ("She was wed to Henry VIII. He was king.", "She was wed to Henry the eighth. He was king."),
        ("\"Long live Henry VIII!\" \"Or Louis XIV.\"", "Long live Henry the eighth! Or Louis the fourteenth."),
        ("James V. Smith, Peter X Ray, Henry V of England", "James V Smith, Peter X Ray, Henry the fifth of England."),
        ("Henry VIII\nReviewed by Robert V.", "Henry the eighth Reviewed by Robert V."),
        ("Henry I think so", "Henry I think so."),
        ("World War II, Chapter IV", "World War two, Chapter four."),
        ("CHAPTER XII\n\nPART IV: THE END", "Chapter twelve. Part four: the end."),
        ("Chapter LXI and Psalm CXIX", "Chapter sixty one and Psalm one hundred nineteen."),
        ("CHAPTER I. LOOMINGS", "Chapter one. Loomings."),
        ("Malcolm X and Malcolm III", "Malcolm X and Malcolm the third."),
        ("The book I read, the part I like", "The book I read, the part I like."),
        ("In World War I he wrote Part I of Book I.", "In World War one he wrote Part one of Book one."),
        ("WORLD WAR I ENDED", "World war one ended."),
        ("Act I was long. A type I error", "Act one was long. A type one error."),
        ("Class C, Section L, a MIX", "Class C, Section L, a M I X."),
    ],
    "abbreviations": [
        ("Mr. and Mrs. Smith met Dr. Lee.", "Mister and Missus Smith met Doctor Lee."),
        ("St. Anna's church on Clark St., Boston", "Saint Anna's church on Clark Street, Boston."),
        ("Chicago, St. Louis. St. Paul.", "Chicago, Saint Louis. Saint Paul."),
        ("Mount St. Helens. Yes, Dr.", "Mount Saint Helens. Yes, Doctor."),
        ("He lives on Sunset Dr.", "He lives on Sunset Drive."),
        ("e.g. cats, i.e. animals, etc.", "for example cats, that is animals, et cetera."),
        ("pens, etc. Then we left.", "pens, et cetera. Then we left."),
        ("It was A vs. B.", "It was A versus B."),
        ("Baker & Sons Ltd. and Acme Inc. agree", "Baker and Sons Limited and Acme Incorporated agree."),
        ("p. 5 and pp. 6-7", "page five and pages six to seven."),
        ("I said no. That is all.", "I said no. That is all."),
    ],
    "initials": [
        ("the BBC and the F.B.I. of the U.S.A.", "the B B C and the F B I of the U S A."),
        ("The U.S. and the U.K. signed.", "The U S and the U K signed."),
        ("J. K. Rowling and J.R.R. Tolkien", "J K Rowling and J R R Tolkien."),
        ("I like vitamin C. The end.", "I like vitamin C. The end."),
        ("We watch the BBC. Nobody else does.", "We watch the B B C. Nobody else does."),
        ("NASA and NATO read HTML and PDFs", "Nasa and Nato read H T M L and P D F's."),
        ("BBC's AT&T story", "B B C's A T and T story."),
    ],
    "capitals": [
        ("STOP SHOUTING AT ME NOW", "Stop shouting at me now."),
        ("THE FBI AND THE BBC ARE HERE", "The F B I and the B B C are here."),
        ("WHAT A DAY! DON'T GO.", "What a day! Don't go."),
        ("I said NO and STOP", "I said no and stop."),
        ("HELLO", "hello."),
        ("iPhone and YouTube", "iPhone and YouTube."),
    ],
    "addresses": [
        ("See https://www.example.com/a-page now.", "See W W W dot example dot com slash a dash page now."),
        ("Write to john.doe@example.co.uk!", "Write to john dot doe at example dot co dot U K!"),
        ("Open report.pdf.", "Open report dot P D F."),
        ("Read [the docs](https://docs.example.com/a_(b)?x=1), then go.", "Read the docs, then go."),
        ('![A cat](cat.png "so big") and [dogs](/d#1)', "A cat and dogs."),
        ("It works.[1] So it does,[12][13] mostly.", "It works. So it does, mostly."),
    ],
    "symbols": [
        ("x² + y² = z²", "x squared plus y squared equals z squared."),
        ("2^10, 10⁶, x⁴", "two to the power of ten, ten to the power of six, x to the power of four."),
        ("10^-3 or 10⁻³", "ten to the power of minus three or ten to the power of minus three."),
        ("It ends.² So does this⁴ note.¹²", "It ends. So does this note."),
        ("~5 minutes, ~$20", "about five minutes, about twenty dollars."),
        ("<5 minutes, >90%, p<0.5", "less than five minutes, more than ninety percent, p less than zero point five."),
        ("<=5 and >= $2, I <3 you", "at most five and at least two dollars, I three you."),
        ("<b>5</b>", "b five b."),
        ("C#, F# and #one", "C sharp, F sharp and hashtag one."),
        ("C++ & #tag @bob", "C plus plus and hashtag tag at bob."),
        ("I ❤️ you 😀!", "I you!"),
        ("“Quoted” — ‘text’… and (more)", "Quoted, text, and, more."),
        ("Really?!?! Yes!!!", "Really? Yes!"),
        ("rock 'n' roll, don't", "rock n roll, don't."),
        ("**bold** and `code`", "bold and code."),
        ("one\n\ntwo", "one. two."),
    ],
    "other scripts": [
        ("café, naïve, Zürich, Straße, Łódź", "cafe, naive, Zurich, Strasse, Lodz."),
        ("你好 hello", "hello."),
        ("привет", "privet."),
        ("안녕", "annyeong."),
        ("α-decay", "alpha-decay."),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "spoken"),
    [pytest.param(text, spoken, id=f"{kind}: {text}") for kind, cases in CASES.items() for text, spoken in cases],
)
def test_reads_what_is_typed(text: str, spoken: str) -> None:
    assert normalize_english(text) == spoken


@pytest.mark.parametrize("text", ["", "   ", "...", "😀🎉", "你好", "（）", "\u200b", "\ud800", "—"])
def test_nothing_to_say_is_an_error(text: str) -> None:
    with pytest.raises(BadText, match="nothing is left"):
        normalize_english(text)


def test_plain_sentences_stay_as_they_are() -> None:
    for text in ("The quick brown fox jumps over the lazy dog.", "Well, isn't it? Yes; of course: it's well-known!"):
        assert normalize_english(text) == text


PIECES = """
Mr. Dr. St. e.g. etc. vs. No. p. 12 1/2 3.14 2024 1990s '80s 3:45 pm a.m. $3.50 million € km 10kg % ° & @ # + = - — …
( ) " ' BBC U.S.A. Henry VIII II I A a X. NASA STOP THE hello World www.example.com a@b.co May 3rd 2024-05-03 😀 é ß 你
я α ² ½ Ⅷ , . ? ! ; : -5 5-6 555-1234 1,000 007 x C++ 50°C v1.2.3 OK PhD Ph.D. J. K. Co. w/o AT&T CDs
-$50 $5/mo [a](b) .[1] 2^10 x⁻³ ⁶ 5μg CHAPTER LXI PART I. ~5 <5 >= 9am-5pm Mon-Fri 03-05-2024 1-2-3 C#
"""


def check(text: str) -> None:
    try:
        spoken = normalize_english(text)
    except BadText:
        return
    assert PLAIN.fullmatch(spoken)
    assert normalize_english(spoken) == spoken


@given(st.text(alphabet=st.characters(), max_size=60))  # lone surrogates too
@settings(max_examples=300, deadline=None)
def test_any_text_becomes_plain_words_and_stays_so(text: str) -> None:
    check(text)


@given(st.lists(st.tuples(st.sampled_from(PIECES.split()), st.sampled_from(["", " ", " ", "\n"])), max_size=10))
@settings(max_examples=300, deadline=None)
def test_any_mixture_of_forms_becomes_plain_words_and_stays_so(pieces: list[tuple[str, str]]) -> None:
    check("".join(piece + gap for piece, gap in pieces))


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "1,234",
        "1.",
        "a.",
        "A",
        "-",
        "( ",
        "a@",
        "www.a.",
        "12:30:",
        "$1",
        "1/2",
        "' ",
        "[a](",
        "[a](b(",
        "[1]",
        "1-",
        "1234 ",
        "9am-",
        "code 123",
        "1234567890 ",
    ],
)
def test_time_grows_with_length_only(unit: str) -> None:
    """A quadratic rule would need minutes for the longer text."""

    def seconds(length: int) -> float:
        text = f"a {unit * (length // len(unit))}"
        began = time.process_time()
        normalize_english(text)
        return time.process_time() - began

    assert seconds(40_000) < 20 * seconds(4_000) + 0.2
