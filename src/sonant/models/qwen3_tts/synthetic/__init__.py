"""Random checkpoints in the published layout, for tests, benchmarks and a first try."""
