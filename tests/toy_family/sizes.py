"""The toy's sizes, which its weights and its prompter share."""

CHANNELS, BYTES = 3, 256
SAMPLE_RATE, SAMPLES_PER_FRAME, CLIP_RATE, CLIP_HOP = 48_000, 1920, 16_000, 640
HISTORY, LOOKAHEAD, DELAY = 2, 3, CHANNELS - 1
