"""What a client may ask for, how often, and for how long a connection may take."""
