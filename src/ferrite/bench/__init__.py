"""Measurements on a loaded model: rates, parity of bits, teacher-forced logits."""
