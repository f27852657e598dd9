"""An experiment, its training on the device or the host, and both as data: read, checked, written."""
