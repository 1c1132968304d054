"""Faults that an earlier explorer had, and the tests that fail if one returns; named as in `checks.py`."""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "Run and compare did nothing, and the texts were below the fold": (
        "intervene run_and_compare_runs_at_the_first_press; "
        "intervene run_and_compare_runs_again_on_its_own_screen_and_is_the_same_run; "
        "intervene a_link_to_edits_runs_on_arrival_and_one_without_edits_waits; "
        "intervene both_continuations_are_at_the_top_next_to_the_edits"
    ),
    "Another model opened on numbers of wren": (
        "prompt another_model_opens_on_a_trace_of_its_own; prompt the_shipped_model_opens_on_an_example_and_three_tasks"
    ),
    "Search cut at 60, had a row for each form of a token, filtered one page, and had dead ends": (
        "search all_results_of_a_search_are_counted_and_reached; "
        "search a_filter_counts_all_results_and_can_be_cleared; "
        "search a_misspelt_word_suggests_existing_tokens; search the_pieces_of_a_word_can_be_searched"
    ),
    "A cleared prompt, one of spaces, one of 5,000 characters": (
        "prompt clearing_the_prompt_sends_no_request_and_leaves_no_error; prompt a_prompt_of_spaces_is_named_as_empty; "
        "prompt the_button_stays_on_the_screen_with_a_long_prompt; "
        "prompt a_prompt_that_cannot_be_traced_leaves_no_numbers_of_another"
    ),
    "Labels lost, keys dead, one counter for two queues, definitions of word pieces, no import": (
        "label a_described_pattern_is_saved_without_a_press_of_add; "
        "label a_description_without_members_is_stored_and_never_as_no_pattern; "
        "label keys_work_after_a_tick_and_in_the_description; "
        "label undo_returns_to_the_item_that_was_left_with_its_work; "
        "label keys_and_values_are_two_queues_and_two_tabs_two_annotators; "
        "label keys_work_as_commands_once_the_name_is_entered; label definitions_are_shown_for_words_only; "
        "label labels_can_be_imported_in_the_page"
    ),
    "Copied code did not run": (
        "copied_code copied_python_and_commands_run; "
        "copied_code a_token_beyond_the_first_plane_is_the_same_text_in_python; "
        "copied_code edits_of_every_kind_are_the_programs_edits; "
        "copied_code a_model_of_a_folder_is_opened_by_its_folder"
    ),
    "The command that builds an index named no model; a tab was dead after a restart": (
        "prompt the_commands_that_build_an_index_name_the_model; "
        "ways_back an_open_tab_works_after_the_server_was_restarted"
    ),
    "Saved files were empty, wrong or without provenance": (
        "saved_files every_file_of_a_screen_holds_what_it_shows; "
        "saved_files the_numbers_in_a_file_are_those_on_the_screen; saved_files a_card_is_saved_as_it_is_seen; "
        "saved_files nothing_is_offered_as_data_before_there_is_any; atlas what_the_atlas_saves_is_what_it_shows"
    ),
    "A cancelled measurement seemed to go on": (
        "intervene a_cancelled_measurement_shows_that_it_was_cancelled; "
        "intervene what_was_sampled_before_a_cancel_stays"
    ),
    "The validator's own text was shown": (
        "intervene a_value_beyond_the_limit_is_refused_in_words; "
        "ways_back a_figure_without_a_number_of_the_model_is_reported_once"
    ),
    "Bars had another order than rows, no sign, no common zero": (
        "inspector effects_are_bars_to_both_sides_of_one_zero; inspector names_and_effects_are_never_truncated"
    ),
    "Glyphs of events were faint": "grid event_glyphs_stand_out_from_every_shade",
    "The focus and the place of the page were lost": (
        "ways_back back_returns_to_where_the_page_was_scrolled; ways_back the_focus_is_in_the_screen_that_was_opened"
    ),
    "A bad target, no tokenizer, one of something": (
        "ways_back a_target_that_is_not_a_token_is_reported_and_the_prediction_explained; "
        "ways_back a_model_without_a_tokenizer_is_explained_on_the_page; other_models one_of_something_is_singular"
    ),
    "A narrow page cut the navigation, a tap changed something out of sight, a head was cut off": (
        "narrow every_screen_can_be_reached_without_scrolling_the_navigation; "
        "narrow a_tap_on_a_cell_shows_it_in_a_sheet_that_can_be_closed; "
        "narrow a_tap_on_the_map_shows_the_memory_in_a_sheet; narrow no_head_is_cut_off; "
        "journeys nothing_overflows_the_page"
    ),
    "Device, index and version were not shown, another metric sent a request, a long prompt had no window": (
        "ways_back the_status_line_shows_what_runs; journeys another_metric_sends_no_request; "
        "ranges_links_tour a_prompt_that_is_too_long_offers_its_last_tokens"
    ),
    "No shape of what loads, no cost of an index": (
        "memory_card skeletons_have_the_shape_of_what_is_loading; "
        "other_models what_needs_an_index_explains_once_how_to_build_one_and_its_cost"
    ),
    "The common beginning was not dimmed, extremes not explained": (
        "intervene the_common_beginning_is_dimmed_on_both_sides; intervene an_extreme_coefficient_is_explained"
    ),
    "What a search finds exactly was not said": (
        "search the_sign_of_a_word_is_a_filter_and_the_page_states_what_is_exact"
    ),
    "Runs that are identical filled the list": "server/routes/comparison the_same_run_again_is_one_run_and_the_newest",
    "The controls of a layer's list wrapped": "shell the_controls_of_a_layers_list_are_one_line",
}
