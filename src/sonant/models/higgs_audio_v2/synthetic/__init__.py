"""Random checkpoints in the published layouts, for tests, benchmarks and a first try."""

from sonant.models.higgs_audio_v2.synthetic.writer import write_checkpoint

KINDS = ("base",)
SIZES = ("tiny", "3b")

__all__ = ["KINDS", "SIZES", "write_checkpoint"]
