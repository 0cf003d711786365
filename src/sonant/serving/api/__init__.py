"""The routes, their bodies and messages, and the form of every answer and error."""
