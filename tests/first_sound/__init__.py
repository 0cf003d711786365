"""A server whose processes record when they did what for a request: where its milliseconds to the first sound go."""
