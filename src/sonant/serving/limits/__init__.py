"""What a client may ask for, how often, and how long a connection may take."""
