"""The talker and its code predictor, trained by teacher forcing over the very modules that serve them."""
