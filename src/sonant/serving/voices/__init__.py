"""Uploaded voices: names, consents, files and the index that they rest on."""
