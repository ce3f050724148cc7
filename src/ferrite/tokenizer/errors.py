"""The one error of the tokenizer."""


class TokenizerError(ValueError):
    """Metadata no tokenizer can be built from, or text or ids it cannot take. The message is one line."""
