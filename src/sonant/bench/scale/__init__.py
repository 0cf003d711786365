"""How many GPUs so many listeners need: replicas as a simulation, from what one engine was measured to do."""
