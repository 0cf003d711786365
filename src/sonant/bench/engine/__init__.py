"""The engine measured in its own process: streams, steps and their parts, with no network in between."""
