"""Steering: continue a prompt with and without edits, find value vectors by the words they promote, save edits.

    found = unembed.steering.promoting(lm, ["war"])
    edits = unembed.steering.chosen_edits(found)
    print(unembed.steering.steer(lm, "The king", edits))

Source: Geva et al. 2022, section 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.memories.token_ranking import RankedValue as RankedValue
    from unembed.memories.token_ranking import firing as firing
    from unembed.memories.token_ranking import promoting as promoting
    from unembed.memories.token_ranking import words_of as words_of
    from unembed.steering.continuations import ON as ON
    from unembed.steering.continuations import SteeringResult as SteeringResult
    from unembed.steering.continuations import change_by_position as change_by_position
    from unembed.steering.continuations import chosen_edits as chosen_edits
    from unembed.steering.continuations import contrast_vector as contrast_vector
    from unembed.steering.continuations import next_token_table as next_token_table
    from unembed.steering.continuations import ranked_values_table as ranked_values_table
    from unembed.steering.continuations import steer as steer
    from unembed.steering.continuations import values_table as values_table
    from unembed.steering.edit_files import load_edits as load_edits
    from unembed.steering.edit_files import save_edits as save_edits
    from unembed.steering.text_cost import default_text as default_text
    from unembed.steering.text_cost import perplexity as perplexity
    from unembed.steering.text_cost import windows as windows
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "unembed.memories.token_ranking": "RankedValue firing promoting words_of",
            "continuations": "ON SteeringResult change_by_position chosen_edits contrast_vector "
            "next_token_table ranked_values_table steer values_table",
            "edit_files": "load_edits save_edits",
            "text_cost": "default_text perplexity windows",
        },
        offered="chosen_edits contrast_vector load_edits promoting save_edits steer",
    )
