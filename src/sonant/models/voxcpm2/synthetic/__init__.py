"""Random checkpoints in the published layout, for tests, benchmarks and a first try."""

from sonant.models.voxcpm2.synthetic.writer import write_checkpoint

KINDS = ("base",)
SIZES = ("tiny", "mid", "2b")

__all__ = ["KINDS", "SIZES", "write_checkpoint"]
