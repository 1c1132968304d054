"""WikiText's tokenisation: whitespace separates words, and a dictionary numbers them.

WikiText is already tokenised. The papers' released code nevertheless ran the tokenizer sacremoses over it, which splits
4 % of the words wrongly. This module does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

BOS, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
SPECIALS = (BOS, PAD, END, UNKNOWN)
"""fairseq's first four words, ids 0 to 3. `<s>` is never used; `</s>` ends every line and opens every text."""


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are whole words separated by whitespace.

    A text starts with `</s>`, as if the end of a line came before it. A line end inside a text is `</s>` too. Words
    that are not in the vocabulary become `<unk>`.

    Args:
        words: the vocabulary in order of ids, `SPECIALS` first.
    """
    ids = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    backend.normalizer = normalizers.Replace("\n", f" {END} ")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, ids[END])])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
