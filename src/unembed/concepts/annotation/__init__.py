"""Labels that people and judges give to values: the queue, its files, majority decisions and agreement."""

from unembed.concepts.annotation.files import KINDS as KINDS
from unembed.concepts.annotation.files import Annotation as Annotation
from unembed.concepts.annotation.files import Pattern as Pattern
from unembed.concepts.annotation.files import add_to_index as add_to_index
from unembed.concepts.annotation.files import agreement as agreement
from unembed.concepts.annotation.files import automatic as automatic
from unembed.concepts.annotation.files import export as export
from unembed.concepts.annotation.files import load as load
from unembed.concepts.annotation.files import patterns_table as patterns_table
from unembed.concepts.annotation.files import summary as summary
