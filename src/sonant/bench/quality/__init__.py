"""Whether speech under load still says the right words in the right voice."""
