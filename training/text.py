"""The sentences that the teachers read: what people type, from packages of plain English and from templates.

    python -m training.text --out carry/sentences.jsonl.gz

Debian packages are fetched with `apt-get download` into a working folder and unpacked there; nothing of them
is committed. The same packages give the same file: order comes from a hash of the text, never from a clock.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from training import phrases, settings

LONGEST, SHORTEST = 220, 3

_ALLOWED = re.compile(r"[A-Za-z0-9 .,;:'\"!?$%&/()£€-]+")
_WRONG = re.compile(
    r"[,;:][,;:.!?]|\.\.|[!?]{2}|[ (]\s|\s[.,;:!?)]|--|[A-Za-z]\d{3}|\d[a-rt-z]{3}|/.*/|\([^)]*$|^[^(]*\)|['\"]{2}"
    r"|[a-z][A-Z]|^[A-Z]: |\([a-z]\)|\d{7}|\b[A-Z]{6,}\b|[A-Za-z]{21,}"
    r"|[.?!][A-Za-z]{2}|\b(?:q\.v|i\.e|cf|viz|esp|pl|syn|obs)\b\.?"
)
_COARSE = re.compile(
    r"\b(?:fuck\w*|shit\w*|cunts?|nigg\w+|fags?|faggots?|whores?|sluts?|bitch\w*|rap(?:e|ed|es|ing|ists?)|penis"
    r"|vagina|cocks?|tits?|negro\w*|orgasm\w*|masturbat\w*|sex|sexy|sexual\w*|slurs?)\b",
    re.I,
)
_CUT_SHORT = re.compile(r"\b(?:who|which|that|of|in|the|an?|and|or|by|to|for|with|from|as|on|at|is)$")
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)'\"][.!?])\s+(?=[A-Z\"])")
_WORD = re.compile(r"[a-z']+")
_VOWEL_START = re.compile(r"[aeiou]", re.I)


@dataclass(frozen=True)
class TextSettings:
    packages: tuple[str, ...]
    eval_sentences: int
    random_sentences: int
    words: int
    limits: dict[str, int]


@dataclass(frozen=True)
class Sentence:
    text: str
    kind: str
    split: str  # train, eval or random


def is_plain(text: str) -> bool:
    """Whether a person could have typed it to be read aloud: no markup, no debris of a dictionary's typesetting."""
    if not SHORTEST <= len(text) <= LONGEST or not _ALLOWED.fullmatch(text):
        return False
    if text[-1] not in '.!?"' or not (text[0].isupper() or text[0].isdigit() or text[0] in "\"'$£€"):
        return False
    spoken = sum(c.isalnum() or c == " " for c in text)
    if spoken < 0.6 * len(text) or text.count('"') % 2:
        return False
    return not _WRONG.search(text) and not _COARSE.search(text)


def as_sentence(fragment: str) -> str:
    """A fragment as it would be typed on its own: a capital letter, a full stop, single spaces."""
    text = re.sub(r"\s+", " ", fragment).strip(" ;,:")
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + "."


def key(text: str) -> str:
    """Equal for sentences that differ in case, spacing or punctuation only."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def order(text: str, salt: str = "") -> bytes:
    return hashlib.sha256((salt + text).encode()).digest()


def sentences_in(paragraph: str) -> Iterator[str]:
    yield from (s.strip() for s in _SENTENCE_END.split(re.sub(r"\s+", " ", paragraph).strip()))


# ------------------------------------------------------------------ sources


def wordnet(text: str) -> Iterator[tuple[str, str]]:
    """Examples as they stand, and definitions as sentences around their headword."""
    for headword, body in re.findall(r"^(\S[^\n]*)\n((?:[ ]{4}[^\n]*\n)+)", text, re.M):
        if headword.startswith("00"):
            continue
        body = re.sub(r"\[[^\]]*\]", "", re.sub(r"\s+", " ", body))
        part = "n"
        for found, sense in re.findall(r"(?:\b(n|v|adj|adv) )?\b\d+: (.*?)(?=(?: (?:n|v|adj|adv))? \d+: |$)", body):
            part = found or part
            for example in re.findall(r'"([^"]+)"', sense):
                yield "example", as_sentence(example)
            meaning = re.split(r";|\(", sense.split('"')[0])[0].strip()
            if len(meaning) > 12 and not _CUT_SHORT.search(meaning):
                yield "definition", as_sentence(_defined(headword, part, meaning))


def _defined(word: str, part: str, meaning: str) -> str:
    if part == "v":
        return f"To {word} is to {meaning}"
    if part != "n":
        return f"{word} means {meaning}"
    if word[0].isupper() or not re.match(r"(?:an?|any|one) ", meaning):
        return f"{word} is {meaning}"
    return f"{'an' if _VOWEL_START.match(word) else 'a'} {word} is {meaning}"


def gcide(text: str) -> Iterator[tuple[str, str]]:
    """Definitions without their apparatus, and the short examples that follow "as,"."""
    for paragraph in re.split(r"\n\s*\n", text):
        flat = re.sub(r"\[[^\]]*\]|--[A-Z][\w. ]*|\([A-Z][\w. ]*\)", " ", re.sub(r"\s+", " ", paragraph))
        flat = re.sub(r"^ ?(?:\d+\. |\([a-z]\) )+", "", re.sub(r"\s+", " ", flat.replace("{", "").replace("}", "")))
        if "\\" in flat:
            continue
        meaning, _, examples = flat.replace(", as, ", "; as, ", 1).partition("; as, ")
        for sentence in sentences_in(meaning):
            if len(sentence) > 25 and not re.match(r" ?(?:See|Same as|Syn|Note|Of or|Fig|Hence)\b", sentence):
                yield "encyclopedia", as_sentence(sentence)
        for example in examples.split(";"):
            if len(example.split()) > 4:
                yield "example", as_sentence(example.replace(" as, ", " ", 1))


def glossary(text: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        clean = re.sub(r"<[^>]*>|\[[^\]]*\]|[{}_]", "", paragraph).translate(str.maketrans("“”‘’", "\"\"''"))
        for sentence in sentences_in(clean):
            if len(sentence.split()) > 3:
                yield "encyclopedia", sentence


def fortunes(text: str) -> Iterator[tuple[str, str]]:
    for cookie in re.split(r"^%\n", text, flags=re.M):
        lines = [line for line in cookie.splitlines() if not re.match(r"\s*--|\s{4,}--|\t\t", line)]
        for sentence in sentences_in(" ".join(lines)):
            yield "quotation", sentence.removeprefix("QOTD: ").replace(" -- ", ", ")


def read_sources(root: Path) -> Iterator[tuple[str, str]]:
    readers = {"wn": wordnet, "gcide": gcide, "foldoc": glossary, "jargon": glossary, "devil": glossary}
    for name, reader in readers.items():
        raw = gzip.decompress((root / f"usr/share/dictd/{name}.dict.dz").read_bytes())
        yield from reader(raw.decode("utf-8", "ignore"))
    for path in sorted((root / "usr/share/games/fortunes").iterdir()):
        if not path.suffix and path.name not in ("ascii-art", "ethnic", "drugs", "men-women", "translate-me"):
            yield from fortunes(path.read_text("utf-8", "ignore"))


# ------------------------------------------------------------------ the file


def collect(found: Iterable[tuple[str, str]], limits: Mapping[str, int]) -> list[tuple[str, str]]:
    """Plain ones only, one of each wording, at most `limits` of each kind, mixed: any stretch is a fair sample."""
    unique: dict[str, tuple[str, str]] = {}
    for kind, text in found:
        if is_plain(text):
            unique.setdefault(key(text), (kind, text))
    kept: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    for kind, text in sorted(unique.values(), key=lambda pair: order(pair[1])):
        if counts[kind] < limits[kind]:
            counts[kind] += 1
            kept.append((kind, text))
    return sorted(join_some(kept, limits["passage"]), key=lambda pair: order(pair[1], "mix"))


def join_some(kept: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Make `most` passages of neighbours, since people also paste two or three sentences at once.

    A sentence that went into a passage is not used alone as well: no held-out text is heard in training.
    """
    parts = [pair for pair in kept if pair[0] in ("example", "quotation")]
    result = [pair for pair in kept if pair[0] not in ("example", "quotation")]
    at = made = 0
    while at < len(parts):
        count = next((n for n in (3, 2) if len(_joined(parts[at : at + n])) <= LONGEST), 1) if made < most else 1
        if count > 1:
            made += 1
            result.append(("passage", _joined(parts[at : at + count])))
        else:
            result.append(parts[at])
        at += count
    return result


def _joined(parts: list[tuple[str, str]]) -> str:
    return " ".join(text for _, text in parts)


def split(kept: list[tuple[str, str]], eval_sentences: int, random_sentences: int) -> list[Sentence]:
    """`eval` has as many of every kind; `random` is drawn from all alike. Both by hash order, so they never move."""
    kinds = sorted({kind for kind, _ in kept})
    wanted = Counter({kind: eval_sentences // len(kinds) for kind in kinds})
    wanted[kinds[0]] += eval_sentences - sum(wanted.values())
    left = random_sentences
    result = []
    for kind, text in kept:
        if wanted[kind] > 0:
            wanted[kind] -= 1
            result.append(Sentence(text, kind, "eval"))
        elif left > 0:
            left -= 1
            result.append(Sentence(text, kind, "random"))
        else:
            result.append(Sentence(text, kind, "train"))
    return result


def with_words(sentences: list[Sentence], most: int) -> list[Sentence]:
    """Add the `most` commonest words, each alone, as no sentence is just "Yes." All of them are for training."""
    counts = Counter(word for s in sentences if s.split == "train" for word in _WORD.findall(s.text.lower()))
    held = {key(s.text) for s in sentences}
    common = [word for word, _ in counts.most_common() if word.isalpha() and len(word) > 1 and key(word) not in held][
        :most
    ]
    alone = [Sentence(word.capitalize() + "..?!"[order(word)[0] % 4], "word", "train") for word in common]
    return sorted([*sentences, *alone], key=lambda s: order(s.text, "mix"))


def fetch(packages: Iterable[str], folder: Path) -> Path:
    """Download and unpack; what is there already is not fetched again."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    for package in packages:
        if not list(folder.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["dpkg", "-x", str(next(folder.glob(f"{package}_*.deb"))), str(root)], check=True)
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "text.toml")
    parser.add_argument("--packages", type=Path, default=Path("/tmp/sonant-packages"), help="working folder")
    parser.add_argument("--out", type=Path, default=Path("carry/sentences.jsonl.gz"))
    options = parser.parse_args()
    config = settings.read(options.config, TextSettings)

    found = [*read_sources(fetch(config.packages, options.packages)), *phrases.generate(config.limits)]
    sentences = split(collect(found, config.limits), config.eval_sentences, config.random_sentences)
    sentences = with_words(sentences, config.words)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(options.out, "wb", mtime=0) as f:
        for s in sentences:
            f.write(json.dumps(vars(s), ensure_ascii=False).encode() + b"\n")
    words = Counter(w for s in sentences for w in _WORD.findall(s.text.lower()))
    print(f"{len(sentences):,} sentences, {sum(len(s.text) for s in sentences):,} characters, {len(words):,} words")
    for name in ("kind", "split"):
        print(dict(Counter(getattr(s, name) for s in sentences)))


if __name__ == "__main__":
    main()
