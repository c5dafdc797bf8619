"""Data of users: files and folders as columns, and columns as what the inputs of a model take."""
