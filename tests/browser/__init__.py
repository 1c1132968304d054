"""The explorer in a real browser.

Faults that an earlier explorer had, and the test that fails if one returns. Without a file name, a test is in the file
named before it.

1. *Run and compare* did nothing: `test_intervene` run_and_compare_runs_at_the_first_press, and_again_on_its_own_screen,
   a_link_to_edits_runs_on_arrival; the texts below the fold: both_continuations_are_at_the_top_next_to_the_edits.
2. Another model opened on numbers of `wren`: `test_prompt` another_model_opens_on_a_trace_of_its_own,
   the_shipped_model_opens_on_an_example_and_three_tasks.
3. Search cut at 60, one row for each form of a token, filters over one page: `test_search`, all; positions that led
   nowhere: a_misspelt_word_suggests_existing_tokens, the_pieces_of_a_word_can_be_searched.
4. An empty prompt, one of spaces, one of 5,000 characters: `test_prompt` clearing_the_prompt..., a_prompt_of_spaces...,
   the_button_stays_on_the_screen_with_a_long_prompt.
5. Labels lost, keys dead, one counter for two queues, glosses of word pieces, no import: `test_label`, all.
6. Copied code that did not run: `test_copied_code`, every screen; emoji, models of a folder, edits of every kind.
7. The command that builds an index named no model: `test_prompt` the_commands_that_build_an_index_name_the_model; a tab
   was dead after a restart: `test_ways_back` an_open_tab_works_after_the_server_was_restarted.
8. Saved files were empty, wrong or without provenance: `test_saved_files`, all; `test_atlas` what_the_atlas_saves...
9. A cancelled measurement: `test_intervene` a_cancelled_measurement..., what_was_sampled_before_a_cancel_stays; text of
   the validator: a_value_beyond_the_limit_is_refused_in_words, `test_ways_back` a_figure_without_a_number...; bars:
   `test_inspector`, all; contrast of glyphs: `test_grid` event_glyphs_stand_out_from_every_shade; scroll and focus:
   `test_ways_back` back_returns..., the_focus_is_in_the_screen_that_was_opened; a bad target:
   a_target_that_is_not_a_token...; no tokenizer: a_model_without_a_tokenizer...; "1 memories": `test_other_models`
   one_of_something_is_singular.
10. A narrow page: `test_narrow`, all; `test_journeys` nothing_overflows_the_page.
11. Device, index and version: `test_ways_back` the_status_line...; metric without a request: `test_journeys`
    another_metric_sends_no_request; a window of a long prompt: `test_ranges_links_tour` a_prompt_that_is_too_long...;
    diverging bars: `test_inspector`; skeletons: `test_memory_card` skeletons...; cost of an index: `test_other_models`
    what_needs_an_index...; common beginning and extremes: `test_intervene` the_common_beginning..., an_extreme_
    coefficient_is_explained; exactness and facets: `test_search` the_sign_of_a_word...; names of heads' columns:
    `test_narrow` no_head_is_cut_off; keys: `test_label` keys_work_after_a_tick_and_in_the_description.

What a new user comes for, each in at most five actions: `test_journeys_in_five_actions`.
"""
