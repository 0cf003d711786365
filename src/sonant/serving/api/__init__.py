"""The routes, their bodies and messages, and how each answer or error is written."""
