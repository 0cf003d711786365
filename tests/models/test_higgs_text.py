"""A text is prepared as in Boson's own script; what only looks like a tag is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonant.errors import BadText
from sonant.models.higgs_audio_v2.spoken_text import SOUNDS, clean
from sonant.models.higgs_audio_v2.tokenizer import Control


def readied(text: str) -> str:
    """The prepared text with control tokens spelled out, as Boson's script leaves them."""
    return "".join(piece.token if isinstance(piece, Control) else piece for piece in clean(text).pieces)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", "Hello."),
        ("Hello", "Hello."),
        ("  a \t b\u3000c\u00a0d \r\n\n \n e  f\n", "a b c d\ne f."),
        ("a\rb\x0bc\u2028d", "a b c d."),
        ("你好，世界。真的？真的！一、二；三：四", "你好, 世界.真的?真的!一,二;三:四."),
        ("“引”‘号’「一」『二』", "\"引\"'号'\"一\"\"二\""),
        ("《书》【1】（注）完", "<书>[1] 注 完."),
        ("等…破—折·号", "等...破-折.号."),
        ("It is (very) cold", "It is very cold."),
        ("at -40°F or 5°C, 90° left", "at -40 degrees Fahrenheit or 5 degrees Celsius, 90° left."),
        ("[laugh] ha [applause][cheering] [cough]!",
         "<SE>[Laughter]</SE> ha <SE>[Applause]</SE><SE>[Cheering]</SE> <SE>[Cough]</SE>!"),
        ("【laugh】", "<SE>[Laughter]</SE>"),
        ("[humming start] m [humming end]", "<SE>[Humming]</SE> m <SE_e>[Humming]</SE_e>"),
        ("[music start] m [music] m [music end]",
         "<SE_s>[Music]</SE_s> m <SE>[Music]</SE> m <SE_e>[Music]</SE_e>"),
        ("[sing start]la[sing end]", "<SE_s>[Singing]</SE_s>la<SE_e>[Singing]</SE_e>"),
        ("Now [music start]", "Now <SE_s>[Music]</SE_s>."),
        ("[humming \t start] m", "<SE>[Humming]</SE> m."),
        ("[[laugh]]", "[<SE>[Laughter]</SE>]."),
        ("[SPEAKER0] Yes.\n[SPEAKER1] No", "[SPEAKER0] Yes.\n[SPEAKER1] No."),
    ],
)  # fmt: skip
def test_a_text_is_readied_as_in_bosons_script(text: str, expected: str) -> None:
    assert readied(text) == expected


@pytest.mark.parametrize("end", [".", "!", "?", ",", ";", '"', "'", "。", "”", "…", "[laugh]", "[sing end]"])
def test_nothing_is_put_after_an_end(end: str) -> None:
    assert readied(f"So it is{end}") == readied(f"So it is{end}  \n")
    assert not readied(f"So it is{end}").endswith(("..", "!.", "?.", ",.", ";.", '".', "'.", ">.")) or end == "…"


@pytest.mark.parametrize("end", ["", ":", "-", ")", "]", "*", "。）x", "[music start]", "</SE>"])
def test_a_stop_is_put_where_there_is_no_end(end: str) -> None:
    assert readied(f"So it is{end}").endswith(".")


def test_sounds_are_control_tokens_and_their_spelling_is_text() -> None:
    assert clean("a [laugh]").pieces == ("a ", Control("<SE>"), "[Laughter]", Control("</SE>"))
    for spelled in ("<SE>[Bells]</SE>", "《SE》x《/SE》", "<|eot_id|>"):
        assert all(isinstance(piece, str) for piece in clean(spelled).pieces)
    with pytest.raises(BadText, match=r"no tag \[Laughter\]: there are \[laugh\] "):  # a text in Boson's form
        clean("<SE>[Laughter]</SE>")


def test_each_known_tag_is_taken() -> None:
    assert len(SOUNDS) == 11
    for tag in SOUNDS:
        assert any(isinstance(piece, Control) for piece in clean(f"a {tag} b").pieces)


def test_speakers_are_those_with_a_tag() -> None:
    assert clean("[SPEAKER0] a [SPEAKER2] b [SPEAKER0] c").speakers == {0, 2}
    assert clean("SPEAKER1: a").speakers == set()


@pytest.mark.parametrize(
    "tag",
    [
        "lagh", "laguh", "Laugh", "LAUGH", "laughs", "laughter", "laughing", "laugh start", "humming", "huming start",
        "humming begin", "humming_start", "music stop", "Music", "musc", "mucis", "sing", "singing", "sing stat",
        "applause end", "aplause", "cheer", "chering", "cogh", "coughs", "Cough",
        "SPEAKERX", "speaker 1", "SPEAKER", "SPEAKER 0", "SPEAKER_1", "SPEAKER-1", "Speaker 1:", "speaker0",
        "SPEAKER01", "SPEAKER1000", "SPEAKER１", "Speaker Ann", "speaker two", " SPEAKER0 ",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_tag_is_refused(tag: str) -> None:
    with pytest.raises(BadText, match=r"no tag \[.*\]: there are \[laugh\] .*\[SPEAKER0\] to \[SPEAKER7\]"):
        clean(f"She said [{tag}] so.")


@pytest.mark.parametrize(
    "inside",
    [
        "1", "12, 13", "sic", "...", "…", "", " ", "x", "citation needed", "emphasis added", "rough", "tough", "couch",
        "musical", "musician", "music video", "music by Bach", "song", "sign", "single", "singular", "king", "human",
        "the speaker", "speaker of the House", "speaker's note", "loudspeaker", "applied", "cheese", "cheerful",
        "launch", "laughable", "cough syrup", "coughing fit", "clears throat", "sigh", "INAUDIBLE", "Smith 2020",
        "a-z", "注", "laugh at it all you want, but listen",
    ],
)  # fmt: skip
def test_ordinary_bracketed_text_is_text(inside: str) -> None:
    assert readied(f"She said [{inside}] so.") == " ".join(f"She said [{inside}] so.".replace("…", "...").split())


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000", "()", "（ ）\n( )", "[SPEAKER0]", "[SPEAKER0] \n [SPEAKER1]"])
def test_nothing_to_say_is_refused(text: str) -> None:
    with pytest.raises(BadText, match="nothing of the text is left to be said"):
        clean(text)


def test_a_sound_alone_can_be_said() -> None:
    assert readied("[SPEAKER0] [laugh]") == "[SPEAKER0] <SE>[Laughter]</SE>"


@settings(deadline=None)
@given(text=st.text() | st.text(alphabet=" \n\r\t.()[]（）【】°CFa"))
def test_a_readied_text_stays_as_it_is(text: str) -> None:
    try:
        once = clean(text)
    except BadText:
        return
    if all(isinstance(piece, str) for piece in once.pieces):
        assert "".join(map(str, once.pieces)) == readied("".join(map(str, once.pieces)))
