"""The one training loop of onward, and what it needs: data, history, progress."""
