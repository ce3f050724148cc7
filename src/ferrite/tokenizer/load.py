"""Builds a tokenizer from a model file's own metadata."""

import logging

from ferrite.gguf.errors import quoted
from ferrite.tokenizer.bytelevel import MERGES, ByteLevelEncoder, byte_level_pieces
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.markers import MarkerSplitter
from ferrite.tokenizer.pretokenizers import DEFAULT_RULE, RULES, Rule
from ferrite.tokenizer.sentencepiece import SCORES, SentencePieceEncoder, sentencepiece_pieces
from ferrite.tokenizer.tokenizer import TextEncoder, Tokenizer, token_pieces
from ferrite.tokenizer.vocabulary import (
    CONTROL_KINDS,
    MARKER_KINDS,
    TURN_TERMINATORS,
    TokenizerMetadata,
    TokenKind,
    Vocabulary,
    check_length,
    load_vocabulary,
)

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
BOS_ID = "tokenizer.ggml.bos_token_id"
EOS_ID = "tokenizer.ggml.eos_token_id"
END_IDS = (EOS_ID, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
UNKNOWN_ID = "tokenizer.ggml.unknown_token_id"
ADD_BOS = "tokenizer.ggml.add_bos_token"
ADD_EOS = "tokenizer.ggml.add_eos_token"
ADD_SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"

SENTENCEPIECE_IDS = {UNKNOWN_ID: 0, BOS_ID: 1, EOS_ID: 2}
"""What ``llama`` files mean when they do not say: SentencePiece's own defaults"""

logger = logging.getLogger(__name__)


def load_tokenizer(metadata: TokenizerMetadata) -> Tokenizer:
    """Build the tokenizer; raise ``TokenizerError`` (or the metadata's error) naming the key at fault.

    ``gpt2`` is byte-level BPE with the rule of ``tokenizer.ggml.pre``: an unknown rule is refused, a
    missing or ``default`` one is used with a warning. ``llama`` is SentencePiece-style BPE; like llama.cpp
    it neither normalises text nor removes extra spaces, whatever the file asks.
    """
    model = metadata.string(MODEL)
    if model not in ("gpt2", "llama"):
        raise TokenizerError(f"{MODEL} {quoted(model)} is not supported, expected 'gpt2' or 'llama'")
    rule = _load_rule(metadata) if model == "gpt2" else None
    vocabulary = load_vocabulary(metadata)
    special = _load_ids(metadata, vocabulary, {} if rule else SENTENCEPIECE_IDS)
    encoder: TextEncoder
    if rule:
        if SCORES in metadata:
            check_length(SCORES, len(metadata.numbers(SCORES)), len(vocabulary.texts))
        encoder = ByteLevelEncoder(vocabulary, metadata.packed_strings(MERGES), rule)
    else:
        space_prefix = metadata.boolean(ADD_SPACE_PREFIX) if ADD_SPACE_PREFIX in metadata else True
        scores = metadata.numbers(SCORES)
        encoder = SentencePieceEncoder(vocabulary, scores, special.get(UNKNOWN_ID), space_prefix=space_prefix)
    return Tokenizer(
        vocabulary=vocabulary,
        encoder=encoder,
        pieces=token_pieces(vocabulary, byte_level_pieces if rule else sentencepiece_pieces),
        rule=rule.name if rule else "sentencepiece",
        bos_id=special.get(BOS_ID),
        add_bos=_load_flag(metadata, ADD_BOS, BOS_ID, special, default=rule.add_bos if rule else True),
        add_eos=_load_flag(metadata, ADD_EOS, EOS_ID, special, default=False),
        end_ids=_end_ids(vocabulary, special),
        all_markers=MarkerSplitter(vocabulary.of_kind(MARKER_KINDS)),
        literal_markers=MarkerSplitter(vocabulary.of_kind(MARKER_KINDS - CONTROL_KINDS)),
    )


def _load_rule(metadata: TokenizerMetadata) -> Rule:
    tag = metadata.string(PRE) if PRE in metadata else None
    if tag in (None, DEFAULT_RULE.name):
        logger.warning(
            "%s is %s: text is split by the rule %r, probably not the one the model was trained with",
            PRE,
            "missing" if tag is None else f"{tag!r}",
            DEFAULT_RULE.name,
        )
        return DEFAULT_RULE
    if tag not in RULES:
        raise TokenizerError(f"{PRE} {quoted(tag)} is not a supported pre-tokenizer rule")
    return RULES[tag]


def _load_ids(
    metadata: TokenizerMetadata, vocabulary: Vocabulary, defaults: dict[str, int]
) -> dict[str, int]:
    """Return the special token ids the file names, or means by default where they exist."""
    last = len(vocabulary.texts) - 1
    ids = {key: token for key, token in defaults.items() if token <= last}
    for key in (BOS_ID, UNKNOWN_ID, *END_IDS):
        if key in metadata:
            ids[key] = metadata.integer(key)
            if not 0 <= ids[key] <= last:
                raise TokenizerError(f"{key} is {ids[key]}, expected 0 to {last}")
    return ids


def _load_flag(
    metadata: TokenizerMetadata, key: str, id_key: str, ids: dict[str, int], *, default: bool
) -> bool:
    wanted = metadata.boolean(key) if key in metadata else default
    if wanted and id_key not in ids:
        raise TokenizerError(f"{key} is true but {id_key} is missing")
    return wanted


def _end_ids(vocabulary: Vocabulary, special: dict[str, int]) -> frozenset[int]:
    ends = {special[key] for key in END_IDS if key in special}
    markers = {text: vocabulary.ids[text] for text in filter(vocabulary.ids.__contains__, TURN_TERMINATORS)}
    control = {text: token for text, token in markers.items() if vocabulary.kinds[token] == TokenKind.CONTROL}
    if {"<|return|>", "<|call|>"} <= control.keys():
        # In this family (harmony) <|end|> closes a message, and the next one may follow.
        control.pop("<|end|>", None)
    return frozenset(ends.union(control.values()))
