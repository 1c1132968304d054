"""Text as a model reads it: documents, sentences or windows, prefixes, batches, and where each token stood."""

from unembed.corpus.corpus import Corpus as Corpus
from unembed.corpus.corpus import open_corpus as open_corpus
from unembed.corpus.segments import Batch as Batch
from unembed.corpus.segments import Document as Document
from unembed.corpus.segments import Segment as Segment
