"""Between front ends and the engine's process: a Unix socket, typed messages, and nothing that is executed."""
