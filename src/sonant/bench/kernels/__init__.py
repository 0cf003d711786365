"""Each op at the shapes that the models give it: measured against plain torch, and tuned."""
