"""The commands: what they take, and what they say. What they do is in modules that are loaded when it is done."""
