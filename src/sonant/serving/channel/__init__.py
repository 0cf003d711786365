"""Connects front ends to the engine's process: a Unix socket with typed messages, none of which carries code."""
