"""Makes tests/models/token_ids.json: transformers' Qwen2 ids for texts that are easy to get wrong.

    python tests/parity/make_token_ids.py --real FOLDER

in the environment of README.md; FOLDER holds the real vocab.json and merges.txt, which we may not redistribute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))

from transformers import Qwen2TokenizerFast  # noqa: E402

from sonant.models.qwen3_tts.synthetic.vocabulary import write_tokenizer  # noqa: E402

TEMPLATE = "<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = [
    "Hello.",
    "",
    " ",
    "\n",
    "\n\nHello",
    " Hello",
    "   Hello   ",
    "Hello\n",
    "Hello \n\n",
    "\r\n\tHello\t\r\n",
    "a  b   c\u00a0d\u3000e",
    "iPhone, YouTube, McDonald's and eBay",
    "I'm sure they'LL say it's DON'T",
    "1234567890 3.14 ١٢٣ ½ ²",
    "$5.00, 50%; a@b.cd #tag https://x.org/?q=1&r=2",
    "你好，世界！“引号”——破折号…",
    "こんにちは、元気ですか？カタカナ",
    "안녕하세요 여러분",
    "สวัสดีครับ",
    "नमस्ते दुनिया",
    "مرحبا بالعالم",
    "Grüße aus Köln, naïve café, Ångström, Übermut",
    "e\u0301 a\u030a o\u0308 \u1100\u1161\u11a8",
    "\u0301leading mark",
    "ﬁ ﬂ Ⅷ ①",
    "👋🏽 👩‍👩‍👧 🇩🇪 ❤️",
    "zero\u200bwidth \u202eoverride\ufeff",
    "<|im_end", "im_end|> < | im_end | >",
    "<b>bold</b> {text} {0} %s \\n",
    "hello the world and speech, assistant user",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, required=True)
    args = parser.parse_args()
    ids: dict[str, list[list[int]]] = {}
    for name, source in (("mini", None), ("real", args.real)):
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), source)
            tokenizer = Qwen2TokenizerFast.from_pretrained(folder)
        ids[name] = [tokenizer(TEMPLATE.replace("{text}", text))["input_ids"] for text in TEXTS]
    rows = zip(TEXTS, ids["mini"], ids["real"], strict=True)
    lines = [json.dumps({"text": t, "mini": m, "real": r}, separators=(",", ":")) for t, m, r in rows]
    out = HERE.parent / "models" / "token_ids.json"
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
