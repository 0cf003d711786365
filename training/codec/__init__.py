"""The codec trainer: sonant's own encoder and decoder, a quantiser that learns, and an export to their file layout."""
