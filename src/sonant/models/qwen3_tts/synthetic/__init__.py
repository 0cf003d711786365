"""Random checkpoints in the published layout, for tests, benchmarks and a first try."""

from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint

KINDS = ("custom_voice", "base", "voice_design")
SIZES = ("tiny", "0.6b", "1.7b")

__all__ = ["KINDS", "SIZES", "write_checkpoint"]
