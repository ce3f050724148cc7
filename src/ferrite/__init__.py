"""Ferrite: one GGUF model on the CPU behind a strict, deterministic OpenAI-compatible API."""
