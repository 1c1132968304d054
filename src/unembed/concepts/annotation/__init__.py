"""Labels that people and judges give to memories (FFN neurons): the queue, files, the judge and agreement."""

from unembed.concepts.annotation.agreement import label_agreement as label_agreement
from unembed.concepts.annotation.agreement import token_agreement as token_agreement
from unembed.concepts.annotation.files import KINDS as KINDS
from unembed.concepts.annotation.files import Annotation as Annotation
from unembed.concepts.annotation.files import Pattern as Pattern
from unembed.concepts.annotation.files import add_to_index as add_to_index
from unembed.concepts.annotation.files import automatic as automatic
from unembed.concepts.annotation.files import export as export
from unembed.concepts.annotation.files import load as load
from unembed.concepts.annotation.files import patterns_table as patterns_table
from unembed.concepts.annotation.files import summary as summary
