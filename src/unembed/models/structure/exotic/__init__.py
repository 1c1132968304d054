"""Model families whose blocks differ from the usual transformer block. Other families need no file in this folder.

The rest of the package uses only the names that this file imports. Some of these functions are called for every block;
for a usual block they find nothing, and return None, an empty result or their argument unchanged.

- `attention`: attention whose queries, keys and values have no standard layout: latent attention and output gates
  (`head_readings`), values from an unusual module or an earlier layer (`values`), two softmaxes (`differential`)
- `stream_blocks`: blocks of models with several residual streams; `several_streams` describes how these are mixed
- `expert_storage`: experts whose weights are stored, or used in the forward pass, in a way that only one family has
- `convolution`: attention or FFN outputs that are convolved over positions before they are added to the stream
- `handovers`: blocks whose output is multiplied by a number before the next block reads it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.models.structure.exotic.attention import without_layout as without_layout
    from unembed.models.structure.exotic.convolution import before_convolution as before_convolution
    from unembed.models.structure.exotic.convolution import convolved_ffn as convolved_ffn
    from unembed.models.structure.exotic.convolution import convolved_mixer as convolved_mixer
    from unembed.models.structure.exotic.differential import DifferentialPattern as DifferentialPattern
    from unembed.models.structure.exotic.differential import differential_pattern as differential_pattern
    from unembed.models.structure.exotic.expert_storage import EveryPosition as EveryPosition
    from unembed.models.structure.exotic.expert_storage import unusual_storages_of as unusual_storages_of
    from unembed.models.structure.exotic.handovers import with_handovers as with_handovers
    from unembed.models.structure.exotic.head_readings import HeadReadings as HeadReadings
    from unembed.models.structure.exotic.head_readings import Latent as Latent
    from unembed.models.structure.exotic.head_readings import Reading as Reading
    from unembed.models.structure.exotic.several_streams import Streams as Streams
    from unembed.models.structure.exotic.several_streams import streams_of as streams_of
    from unembed.models.structure.exotic.stream_blocks import blocks_of_streams as blocks_of_streams
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "attention": "without_layout",
            "convolution": "before_convolution convolved_ffn convolved_mixer",
            "differential": "DifferentialPattern differential_pattern",
            "expert_storage": "EveryPosition unusual_storages_of",
            "handovers": "with_handovers",
            "head_readings": "HeadReadings Latent Reading",
            "several_streams": "Streams streams_of",
            "stream_blocks": "blocks_of_streams",
        },
    )
