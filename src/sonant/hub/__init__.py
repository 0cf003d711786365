"""Published checkpoints on a hub: their names, the files that loading them needs, and how these are fetched."""
