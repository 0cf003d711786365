"""The server's processes: one that starts the others, one with the engine, and front ends that answer HTTP."""
