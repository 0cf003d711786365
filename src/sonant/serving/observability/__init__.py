"""What the server tells of itself: metrics, recent figures, the GPU."""
