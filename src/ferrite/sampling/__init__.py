"""How the next token is chosen: the parameters of one request. The arithmetic is native."""

from ferrite.sampling.params import SamplingParams

__all__ = ["SamplingParams"]
