"""Operational tools: HTTP clients that load, measure and check a running server."""
