"""One op, one function: a torch reference for each, faster versions where a device has them."""
