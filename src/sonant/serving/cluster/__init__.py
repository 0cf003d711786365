"""Many engines behind one address: replicas that Ray Serve places, restarts, scales and routes to."""
