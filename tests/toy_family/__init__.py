"""A model family made only for the tests: it uses everything that the contract allows and Qwen3-TTS does not use.

Frames are float latents, drawn with a delay pattern; two stacks of layers with different shapes share one block table;
the codec looks ahead; clips come at 16 kHz and sound leaves at 48 kHz; there are no named voices, and it speaks without
one; the last frame carries the stop; a knob chooses between two kinds of frame step. It can be made to speak dialogues,
and to take context from what was said before.
"""
