"""How many GPUs a number of listeners needs: a simulation of replicas, from measurements of one engine."""
