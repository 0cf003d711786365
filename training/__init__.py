"""How Sonant's own voice was made: text, corpus, codec. Runs beside the package and is not shipped with it."""

import importlib.util
import sys
from types import ModuleType

# The trainers use sonant's modules, never its reading of audio files, and a rented GPU machine often lacks
# these two. An empty stand-in lets `import sonant` pass there; using it would fail with its name.
for _name in ("soundfile", "soxr"):
    if importlib.util.find_spec(_name) is None:
        sys.modules.setdefault(_name, ModuleType(_name))
