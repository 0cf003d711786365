"""What the server reports about itself: metrics, recent figures, the GPU."""
