"""Text before it is spoken: what can be said, where it is cut, and how English is written out in words."""
