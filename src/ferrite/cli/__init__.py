"""The commands: `ferrite-server` and `ferrite`."""
