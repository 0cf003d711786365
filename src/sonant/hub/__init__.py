"""Published checkpoints, fetched from a hub: what there is under which name, and the files that are needed."""
