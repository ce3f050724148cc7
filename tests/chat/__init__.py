"""Tests of ferrite.chat."""
