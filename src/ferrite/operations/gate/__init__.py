"""The long-chat gate: checks of a running server, section by section, each with its evidence."""
