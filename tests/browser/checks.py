"""What every screen of the explorer must do, and the tests that show it.

`tests/browser/test_checks.py` compares the names with the tests that exist. A test is named by its file, without
`test_`, in this folder or in one of `tests/`, and by its own name, without `test_`.
"""

from __future__ import annotations

CHECKS: dict[str, dict[str, str]] = {
    "all screens": {
        "The prompt, the position, the layer and the memory are crumbs, each of which leads one level up": (
            "ranges_links_tour crumbs_lead_up"
        ),
        "A pointer previews without a request, a click selects, a click with Shift pins": (
            "grid_cells the_preview_of_a_cell_asks_nothing_stays_under_the_pointer_and_pins; "
            "trace_and_layer a_click_with_shift_pins"
        ),
        "The status line shows what runs, for how long, and cancels it; a failure stays until it is dismissed": (
            "shell the_status_line_counts_the_seconds_and_keeps_a_failure_until_it_is_dismissed; "
            "more_journeys what_runs_can_be_cancelled"
        ),
        "Device, dtype, index and version are shown": "ways_back the_status_line_shows_what_runs",
        "The inspector is widened, folded, or a page of its own": (
            "trace_and_layer the_inspector_is_widened_and_folded_by_keyboard_and_stays_so; "
            "trace_and_layer the_inspector_opens_alone_with_the_same_selection"
        ),
        "In a narrow window the inspector is a sheet, and nothing is cut off": (
            "narrow a_tap_on_a_cell_shows_it_in_a_sheet_that_can_be_closed; narrow no_head_is_cut_off; "
            "narrow the_ranks_that_tokens_moved_are_never_cut_off; narrow the_tokens_of_a_pattern_can_be_read; "
            "narrow a_patched_prompt_of_six_tokens_needs_no_scrolling; "
            "trace_and_layer a_narrow_window_cuts_nothing_off; journeys nothing_overflows_the_page"
        ),
        "What loads has the shape of what comes; old numbers stay, dimmed; long work comes in parts": (
            "memory_card skeletons_have_the_shape_of_what_is_loading; "
            "shell old_numbers_stay_dimmed_while_new_ones_are_computed; "
            "prompt everything_about_the_old_prompt_is_dimmed_until_the_new_one_is_traced; "
            "more_journeys a_long_trace_comes_in_parts"
        ),
        "A pane that has nothing to show says why and what to do": (
            "other_models what_needs_an_index_explains_once_how_to_build_one_and_its_cost; "
            "other_models a_model_without_feed_forward_layers_is_described_by_its_attention; "
            "ways_back a_model_without_a_tokenizer_is_explained_on_the_page"
        ),
        "A failure is shown where it happened, with a button to try again": (
            "journeys a_server_that_dies_is_reported; server/responses every_failure_has_a_code_a_message_and_a_remedy"
        ),
        "What was computed for another question says that it is old": (
            "memory_heads_labs an_edit_changed_during_a_run_is_not_what_the_run_shows; "
            "memory_heads_labs two_runs_are_compared"
        ),
        "A link holds everything that is seen, and Back returns to it": (
            "journeys a_link_restores_what_was_seen; ranges_links_tour a_short_link_holds_everything_itself; "
            "address two_prompts_within_a_moment_are_two_steps_back; "
            "ways_back back_returns_to_where_the_page_was_scrolled"
        ),
        "A long link is a stored session, which can be downloaded": (
            "ranges_links_tour a_long_link_names_a_session_that_restores_everything"
        ),
        "A link made with another model, revision or index is announced": (
            "shell a_link_of_another_model_or_index_is_announced"
        ),
        "What an address holds that cannot be read is named in one line, and the rest is shown": (
            "unread_address an_edit_that_cannot_be_read_is_named_and_the_others_are_made; "
            "unread_address a_pinned_token_outside_the_vocabulary_is_named_and_the_other_is_drawn; "
            "unread_address what_else_cannot_be_read_is_named_and_the_screen_opens; "
            "unread_address an_address_typed_into_an_open_page_is_read_the_same_way"
        ),
        "The view is copied as Python, as a command, as a citation, and what is copied runs": (
            "copied_code copied_python_and_commands_run; ranges_links_tour the_view_is_copied_as_a_citation"
        ),
        "Every file that is saved holds what is seen, and its provenance": (
            "saved_files every_file_of_a_screen_holds_what_it_shows; "
            "saved_files the_numbers_in_a_file_are_those_on_the_screen; saved_files a_card_is_saved_as_it_is_seen; "
            "saved_files a_file_names_the_prompts_that_its_screen_shows_and_no_other"
        ),
        "Keys move, open, recolour and edit; single letters do nothing in a text and can be switched off": (
            "keys arrows_home_end_and_pages_move_in_the_grid; "
            "keys brackets_move_between_layers_and_commas_between_positions; "
            "keys letters_recolour_pin_hide_events_and_add_an_edit; "
            "keys keys_open_the_search_the_help_the_menu_and_the_commands; "
            "keys letters_do_nothing_in_a_text_and_can_be_switched_off; "
            "ranges_links_tour the_baseline_is_seen_while_its_key_is_held"
        ),
        "No rule of WCAG 2.2 A and AA is broken, in the light and the dark theme": (
            "accessible no_violation_in_both_themes_wide_and_narrow; memory_heads_labs no_violation_in_both_themes"
        ),
        "The system's settings for colours and motion are followed": (
            "shell forced_colours_keep_the_shades_and_less_motion_moves_nothing"
        ),
        "Every chart is a table of the same numbers that can be sorted": (
            "shell every_chart_is_a_table_that_can_be_sorted"
        ),
        "Tokens are written the same everywhere, what is invisible is marked, and copying gives their own text": (
            "journeys hostile_text_is_only_text; shell hostile_texts_of_the_corpus_are_only_text; "
            "ranges_links_tour tokens_are_copied_as_they_are; "
            "notebook/whole/notebook the_script_is_valid_and_marks_tokens_like_python"
        ),
        "Help of two sentences in each pane, and a tour of six steps": (
            "memory_heads_labs the_help_of_a_pane_opens_on_request; "
            "ranges_links_tour the_tour_has_six_steps_and_ends; "
            "ranges_links_tour a_link_begins_the_tour_anywhere_and_escape_ends_it"
        ),
        "Labels are words of the field": "server/assets labels_are_words_of_the_field",
        "The page measures its own interactions": "trace_and_layer timings_are_the_pages_own_spans",
        "A screen loads at most 135 kB": "server/assets no_screen_needs_more_than_135_kb",
        "Nothing is asked of another server, and nothing is written to the console": "conftest opened",
        "Only this machine, and only who has the token, is served": (
            "server/auth without_the_token_the_api_is_closed; server/auth other_hosts_and_other_sites_are_refused; "
            "server/auth every_answer_carries_the_policy; server/serve an_address_of_no_machine_here_is_refused"
        ),
        "A newer request replaces the older one, and concurrent clients do not": (
            "server/state a_replaced_request_is_not_computed; "
            "more_journeys simultaneous_requests_do_not_replace_each_other"
        ),
        "The installed package serves the same page": "wheel the_wheel_serves_its_own_page",
        "Notebooks draw the same pieces without a server": (
            "notebook_page an_output_draws_itself_without_a_server; "
            "notebook_page a_widget_writes_its_selection_back_and_leaves; "
            "notebook/whole/notebook a_trace_is_a_table_first; notebook/whole/notebook no_text_ends_the_script"
        ),
        "What a new user comes for takes at most five actions": (
            "journeys_in_five_actions why_this_token_and_not_that; "
            "journeys_in_five_actions why_this_token_and_not_that_on_a_small_published_llama; "
            "journeys_in_five_actions find_a_theme_and_silence_it; "
            "journeys_in_five_actions find_an_induction_head_on_ones_own_text; "
            "journeys_in_five_actions search_label_and_export; journeys_in_five_actions compare_two_prompts; "
            "journeys_in_five_actions open_ones_own_model_folder"
        ),
    },
    "trace": {
        "An example is drawn before any request, and another model opens on its own": (
            "more_journeys the_example_is_drawn_before_any_request; prompt another_model_opens_on_a_trace_of_its_own"
        ),
        "Every cell is the library's reading": (
            "journeys a_trace_shows_the_librarys_numbers; server/routes/traces every_cell_of_the_grid_is_the_librarys"
        ),
        "A repeated token is a stem, and the final prediction is outlined": (
            "grid_cells a_repeated_token_is_a_stem_and_the_final_prediction_is_outlined"
        ),
        "The state after the attention is a row of its own": (
            "grid_cells the_state_after_the_attention_is_a_row_of_its_own"
        ),
        "Another metric recolours without a request": (
            "journeys another_metric_sends_no_request; more_journeys entropy_is_the_librarys_and_sends_no_request; "
            "trace_and_layer a_followed_token_shades_every_cell_and_is_requested_once"
        ),
        "The legend names every sign, and signs stand out from every shade": (
            "grid the_legend_names_every_sign; grid event_glyphs_stand_out_from_every_shade; "
            "trace_and_layer big_moves_of_the_answer_are_marked"
        ),
        "A cell under the pointer shows its top five": "grid a_hovered_cell_shows_its_top_five",
        "A selection writes no cell": "grid_cells a_selection_moves_a_ring_and_writes_no_cell",
        "Cells out of view do not exist, and cells keep their numbers": (
            "grid_cells cells_keep_their_row_and_column_numbers_wherever_the_grid_is_scrolled; "
            "journeys a_long_prompt_scrolls_inside_its_box"
        ),
        "200 tokens fit the width; longer prompts have an overview; columns are pinned": (
            "grid two_hundred_tokens_fit_the_width; grid a_long_prompt_has_an_overview_that_leads_to_every_position; "
            "grid the_grid_fits_the_width_with_colour_alone_and_names_its_cells; grid a_pinned_column_stays_in_view"
        ),
        "Either end is on top": "trace_and_layer the_first_layer_on_top",
        "Five pins, each with a dash, a colour and a name": "grid_cells five_pins_have_each_a_dash_a_colour_and_a_name",
        "The rank or probability of tokens by layer shows who overtakes whom": (
            "trace_and_layer token_ranks_in_probabilities_send_no_request_and_show_who_overtakes_whom"
        ),
        "Events are markers in lanes, with the library's sentence": (
            "trace_and_layer events_are_drawn_in_lanes_with_their_sentence; "
            "server/routes/traces moves_are_described_in_words"
        ),
        "The keyboard alone finds the layer of saturation": "journeys the_keyboard_alone_finds_the_saturation_layer",
        "A range of layers is dragged, and read as one": (
            "ranges_links_tour dragging_over_layers_shows_what_they_do_together; "
            "ranges_links_tour shift_and_arrows_choose_layers_and_escape_lets_go"
        ),
        "The prompt is tokenized while it is typed, and what the tokenizer changes is reported": (
            "journeys typing_a_prompt_and_tracing_it; "
            "server/routes/traces a_text_that_the_tokenizer_changes_is_reported_with_the_place"
        ),
        "An empty prompt, and one that is too long, are answered in words": (
            "prompt a_prompt_of_spaces_is_named_as_empty; "
            "ranges_links_tour a_prompt_that_is_too_long_offers_its_last_tokens"
        ),
        "The predicted token is appended": "shell the_predicted_token_is_appended",
        "Findings lead to what they name": "trace_and_layer findings_link_to_the_screens_they_name",
        "A target and a runner-up drive every pane": (
            "trace_and_layer a_target_and_a_runner_up_drive_every_pane; "
            "trace_and_layer one_token_is_found_with_or_without_its_space_and_several_are_listed"
        ),
        "Memories that are always on are folded; the effect beyond the mean is another order": (
            "trace_and_layer memories_that_are_always_on_are_folded_and_the_mean_is_taken_away"
        ),
        "Total effects stand beside direct ones": (
            "trace_and_layer total_effects_are_shown_with_direct_ones_in_the_attribution"
        ),
        "A picture of the model shows what each part adds, and leads there": (
            "trace_and_layer the_picture_of_the_model_shows_what_each_part_adds_and_leads_there"
        ),
        "What edits changed, and what they could reach": (
            "trace_and_layer what_edits_can_reach_is_tinted_and_nothing_else_changes"
        ),
        "The sub-updates beside the grid are bars to both sides of one zero": (
            "inspector effects_are_bars_to_both_sides_of_one_zero; inspector names_and_effects_are_never_truncated"
        ),
    },
    "layer": {
        "Before, after the attention, after the FFN, with the ranks that tokens moved": (
            "trace_and_layer candidates_show_how_many_ranks_they_moved; "
            "shell a_hovered_candidate_is_marked_in_all_three_columns"
        ),
        "Heads and memories are ranked by effect on the question, with their signs": (
            "trace_and_layer a_layers_heads_and_memories_by_effect"
        ),
        "20 rows fit on a screen, and their controls on one line": (
            "trace_and_layer twenty_sub_updates_fit_on_one_screen; shell the_controls_of_a_layers_list_are_one_line"
        ),
        "What is listed and the rest are the whole update": (
            "more_journeys listed_sub_updates_and_the_rest_make_the_layers_update; "
            "more_journeys a_layer_lists_what_holds_ninety_per_cent"
        ),
        "A row opens in place, and goes into the edits": (
            "ranges_links_tour a_sub_update_opens_in_place; trace_and_layer a_head_is_switched_off_from_the_layer"
        ),
        "A sum that does not hold is reported with its number": (
            "shell a_sum_that_is_not_proved_is_reported_with_its_number"
        ),
        "The same numbers as the command": "server/routes/traces a_layer_is_what_the_command_prints",
        "Another layer leaves the page where it is scrolled": (
            "shell another_layer_leaves_the_page_where_it_is_scrolled"
        ),
    },
    "memory": {
        "Name, density, coefficient here and its percentile, norm, cluster, effect": (
            "memory_card the_header_shows_the_name_and_the_effect_here; "
            "memory_card another_question_is_another_effect; "
            "memory_heads_labs the_coefficient_here_has_a_percentile_among_the_sampled_ones"
        ),
        "Examples and tokens side by side above the fold, both ends on one scale": (
            "memory_card examples_and_tokens_are_side_by_side_above_the_fold; "
            "memory_card both_ends_of_a_value_are_drawn_on_one_scale; "
            "memory_heads_labs fifty_tokens_at_either_end_and_a_list_to_copy"
        ),
        "The scores of all tokens are drawn": "memory_card the_scores_of_all_tokens_are_drawn",
        "The marked token is the one that fires, with its stored value; the context has a length": (
            "journeys triggers_mark_the_token_that_fires; "
            "memory_heads_labs contexts_are_shaded_and_cut_at_the_chosen_length; "
            "server/routes/memories triggers_are_those_of_the_index"
        ),
        "Examples by quantile": "memory_heads_labs weaker_contexts_come_from_the_sample_and_are_marked",
        "A gated model has examples of both signs": "gated a_memory_of_a_gated_model_shows_the_examples_of_both_poles",
        "The coefficient here is marked in the distribution": (
            "more_journeys a_coefficient_is_marked_in_the_activation_distribution"
        ),
        "A text of one's own is shaded by the coefficient": "shell a_memory_is_tested_on_a_text_of_ones_own",
        "Neighbours and the cluster lead to other memories": (
            "server/routes/memories neighbours_are_those_of_the_index; "
            "memory_heads_labs values_are_clustered_once_and_a_cluster_leads_to_its_members"
        ),
        "Heads that write to its key and memories that read it": (
            "memory_card connected_heads_and_memories_are_listed_with_links; "
            "server/routes/memories connections_are_those_of_the_weights"
        ),
        "It is set in place, and the next token follows": (
            "memory_card a_coefficient_is_set_in_place_and_the_next_token_follows"
        ),
        "Two memories side by side": "more_journeys two_memories_side_by_side",
        "Next leads through what the search found": "memory_heads_labs next_leads_through_what_the_search_found",
        "A label has tags, a verdict and a note, and outlives the server": (
            "memory_heads_labs a_label_has_tags_a_verdict_and_a_note; journeys labels_survive_a_restart; "
            "memory_card a_label_that_could_not_be_stored_stays_in_the_form"
        ),
        "A memory that does not exist names those that do": (
            "ways_back a_link_to_a_missing_head_or_memory_opens_an_existing_one"
        ),
    },
    "intervene": {
        "Both continuations run on arrival, at the top, beside the edits": (
            "intervene a_link_to_edits_runs_on_arrival_and_one_without_edits_waits; "
            "intervene both_continuations_are_at_the_top_next_to_the_edits"
        ),
        "The common beginning is dimmed, the first difference marked": (
            "intervene the_common_beginning_is_dimmed_on_both_sides"
        ),
        "An edit has a value, landmarks and a scope, is switched off and on, undone and redone": (
            "memory_heads_labs landmarks_of_a_coefficient_and_the_way_back; "
            "more_journeys a_memory_is_set_to_the_most_that_was_seen; "
            "memory_heads_labs the_tray_shows_from_which_position_an_edit_holds; "
            "more_journeys edits_are_undone_and_redone"
        ),
        "A moving slider asks for the newest value only": (
            "shell the_last_value_of_a_moved_slider_is_what_the_table_shows"
        ),
        "Next token and its KL, before and after": (
            "more_journeys an_edit_states_its_cost_in_nats; server/routes/comparison the_next_token_table"
        ),
        "Bypassing all edits is the baseline; off and on again is too; the same seed is the same text": (
            "journeys an_edit_changes_the_continuation_and_bypass_brings_it_back; "
            "server/routes/comparison turning_off_then_on_returns_the_baseline; "
            "server/routes/comparison the_same_seed_gives_the_same_text_and_no_edits_one_side"
        ),
        "An edit of the last position leaves earlier cells equal": (
            "server/routes/comparison the_last_position_only_leaves_earlier_cells_equal"
        ),
        "A side that fails leaves the other, and an extreme value is explained": (
            "server/routes/comparison a_side_that_overflows_leaves_the_other_complete; "
            "intervene an_extreme_coefficient_is_explained"
        ),
        "Runs are kept and compared, and an identical run replaces the earlier one": (
            "memory_heads_labs two_runs_are_compared; "
            "intervene run_and_compare_runs_again_on_its_own_screen_and_is_the_same_run; "
            "server/routes/comparison the_same_run_again_is_one_run_and_the_newest"
        ),
        "Edits are kept under a name": "more_journeys edits_are_kept_as_a_preset_and_loaded_again",
        "Edits of every kind are the program's": "copied_code edits_of_every_kind_are_the_programs_edits",
    },
    "compare": {
        "Every cell is the library's patch": (
            "compare every_cell_is_the_patch_of_the_library; server/routes/patching patches_are_the_librarys"
        ),
        "A cell opens its heads and memories, and three texts continue": (
            "compare a_cell_opens_its_heads_and_memories_and_a_link_restores_it; "
            "compare three_continuations_and_a_memory_goes_into_the_edits"
        ),
        "Two equal prompts are refused in words": "compare two_equal_prompts_are_refused_in_words",
        "A prompt of one's own waits for its second": "compare a_prompt_of_ones_own_waits_for_its_second",
    },
    "flow": {
        "The answer on top, the prompt below; what flows into each part adds up": (
            "flow the_picture_shows_the_answer_the_parts_and_the_test; "
            "circuit_graph/flow_view what_flows_into_each_part_of_a_picture_adds_up"
        ),
        "A part shows what was measured beside what is drawn; it is switched off, or set from another prompt": (
            "flow a_part_shows_what_was_measured_beside_what_is_drawn; "
            "circuit_graph/removal_of_each a_removal_is_an_edit_of_that_part_alone"
        ),
        "Arrow keys move through the picture; a table has all numbers": (
            "flow the_picture_is_moved_through_by_keyboard_and_read_as_a_table; "
            "accessible no_violation_in_both_themes_wide_and_narrow"
        ),
        "More parts, another question, another prompt to compare with": (
            "flow fewer_parts_and_another_question_draw_another_picture; "
            "flow a_prompt_of_another_length_is_refused_in_words"
        ),
        "A narrow window cuts nothing off": "flow a_narrow_window_cuts_nothing_off",
        "The picture is saved with its test": "flow the_picture_is_saved_with_its_test",
        "Steps are reported while it is found": (
            "server/routes/flow the_picture_comes_after_its_progress_and_then_from_the_cache"
        ),
    },
    "heads": {
        "All heads by a score, with their rank, and the top n": (
            "memory_heads_labs heads_by_their_effect_on_the_target_against_the_runner_up; "
            "server/routes/heads scores_are_the_librarys"
        ),
        "A picture and a name of every head": (
            "memory_heads_labs every_head_has_a_picture_and_a_name_and_a_press_opens_it; "
            "server/routes/heads a_head_is_named_by_a_score_that_is_surely_large"
        ),
        "The pattern on any text, by weight or contribution; rows add up to one": (
            "memory_heads_labs a_pattern_on_a_text_of_ones_own_by_weight_or_by_what_is_carried; "
            "memory_heads_labs a_hovered_token_shows_what_it_attends_to_and_what_attends_to_it; "
            "server/routes/heads a_pattern_is_the_models_and_its_rows_add_up_to_one"
        ),
        "A hidden first column is announced": "journeys heads_and_their_pattern",
        "What comes from each source token is arcs over the text": (
            "memory_heads_labs arcs_are_what_comes_from_each_source_token"
        ),
        "OV, QK, the terms of a score, composition": (
            "server/routes/heads a_head_is_its_circuit; server/routes/heads a_score_is_the_sum_of_its_terms"
        ),
        "Examples of the corpus are marked and lead to a trace": (
            "memory_heads_labs a_heads_examples_are_marked_and_lead_to_a_trace"
        ),
        "Repeated tokens show the induction stripe; the best induction head is first": (
            "more_journeys a_repeated_text_shows_the_induction_stripe; "
            "server/routes/heads the_best_induction_head_looks_where_the_stripe_is"
        ),
        "Heads that share keys are named": "shell heads_that_share_keys_are_named",
        "Labels of a head are shown wherever it is": (
            "memory_heads_labs a_label_of_a_head_is_shown_wherever_the_head_is"
        ),
    },
    "atlas": {
        "Points open memories; searched, brushed, coloured, moved through by keys": (
            "atlas a_click_on_a_point_opens_its_memory_and_a_link_restores_it; "
            "atlas a_search_lists_all_that_the_library_finds_and_fades_the_rest; "
            "atlas a_brush_selects_exactly_the_points_inside; atlas kinds_are_counted_and_can_be_hidden; "
            "atlas the_keyboard_goes_from_value_to_value_and_opens_its_card"
        ),
        "A map of a sample says so, and a million values are found": (
            "atlas a_map_of_fewer_points_than_values_states_it; "
            "atlas a_map_of_a_million_values_states_its_sample_and_finds_its_points"
        ),
        "The best memories of many concepts": "atlas the_best_memories_listed_are_those_that_the_command_lists_first",
        "It is computed once, with the index": (
            "server/routes/atlas with_an_index_the_map_is_computed_once_and_has_densities"
        ),
    },
    "search": {
        "A search finds exactly the values whose list has the token, by either sign": (
            "server/routes/memories search_finds_exactly_the_values_whose_list_holds_the_token; "
            "server/routes/memories search_for_what_suppresses; server/routes/memories a_query_is_parsed"
        ),
        "Examples and labels are searched; wildcards and regular expressions": (
            "server/routes/memories search_in_triggers_and_names; "
            "server/routes/memories a_wildcard_and_a_regular_expression_match_tokens"
        ),
        "All results are counted, paged, and one row each; facets act on all": (
            "search all_results_of_a_search_are_counted_and_reached; "
            "search a_filter_counts_all_results_and_can_be_cleared; "
            "search the_sign_of_a_word_is_a_filter_and_the_page_states_what_is_exact; "
            "server/routes/memories pages_of_a_search_are_all_of_it_with_one_row_for_each_memory; "
            "server/routes/memories filters_act_on_all_pages"
        ),
        "How the word is tokenized, and what to search instead": (
            "search a_search_names_the_tokens_it_looks_for; search the_pieces_of_a_word_can_be_searched; "
            "search a_misspelt_word_suggests_existing_tokens"
        ),
        "An id jumps": "journeys search_jumps_to_a_memory",
        "Results join a concept, which is edited as one and exported": (
            "more_journeys chosen_results_join_a_concept_and_leave_it; "
            "more_journeys a_name_leads_to_its_concept_and_into_the_edits; "
            "server/routes/labels_concepts a_concept_is_all_memories_of_a_name"
        ),
    },
    "label": {
        "The queue is blind and the same for a seed": (
            "server/routes/labels the_queue_is_blind_and_the_same_for_a_seed; journeys an_annotator_finds_a_pattern"
        ),
        "Keys work everywhere, and nothing that was typed is lost": (
            "label keys_work_after_a_tick_and_in_the_description; "
            "label a_description_without_members_is_stored_and_never_as_no_pattern; "
            "label undo_returns_to_the_item_that_was_left_with_its_work"
        ),
        "Two annotators and two tabs keep both": (
            "label keys_and_values_are_two_queues_and_two_tabs_two_annotators; "
            "server/routes/labels labels_of_two_pages_are_both_stored"
        ),
        "Agreement is measured; export and import are inverse": (
            "server/routes/labels annotations_are_stored_and_agreement_is_measured; "
            "server/routes/labels export_and_import_are_inverse_and_repeatable; "
            "label labels_can_be_imported_in_the_page"
        ),
    },
    "labs": {
        "Values are found by words": "server/routes/labs values_found_by_words_and_their_edits",
        "A concept is scaled, × 1 changes nothing, and the cost stands beside the benefit": (
            "memory_heads_labs a_concept_is_scaled_and_its_cost_is_shown; "
            "server/routes/labs suppression_shows_its_cost_with_its_benefit"
        ),
        "Sampled texts are hidden until they are asked for": "shell sampled_texts_are_hidden_until_they_are_asked_for",
        "Never exiting is the full model": "server/routes/labs never_leaving_is_the_full_model",
        "The curve is moved without a request, and recomputed from its file": (
            "memory_heads_labs moving_along_the_early_exit_curve_sends_no_request; "
            "memory_heads_labs the_curve_is_saved_as_it_is_drawn; "
            "server/routes/labs a_threshold_of_the_curve_gives_the_curves_numbers"
        ),
    },
}
