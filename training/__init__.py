"""How Sonant's own voice was made: text, corpus, codec. Runs beside the package and is not shipped with it."""
