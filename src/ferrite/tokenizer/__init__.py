"""Text ↔ token ids, from a model file's own metadata."""

from ferrite.tokenizer.detokenizer import Detokenizer
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.load import load_tokenizer
from ferrite.tokenizer.tokenizer import Tokenizer
from ferrite.tokenizer.vocabulary import TokenizerMetadata

__all__ = ["Detokenizer", "Tokenizer", "TokenizerError", "TokenizerMetadata", "load_tokenizer"]
