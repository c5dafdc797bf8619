"""Layer 2: puts forward graph, loss, gradient and optimizer together."""
