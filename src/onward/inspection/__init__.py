"""What `onward.check` finds out about a model before anyone trains it."""
