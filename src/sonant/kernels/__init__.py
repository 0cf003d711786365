"""One function for each op: a reference in torch, and faster implementations where a device has them."""
