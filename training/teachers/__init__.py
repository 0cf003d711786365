"""The two voices that the corpus is made from, fed with phonemes, so that no text front end travels with them."""
