"""A server whose processes note when what happened to a request: the account of its milliseconds to the first sound."""
