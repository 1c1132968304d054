"""Kinds of models: what each promises, and the tests that fail if a promise is broken.

Files are those of this folder, or named.

**Every class** of transformers, tiny and perturbed (list made from the package): `whole/test_decoder_classes`, all,
in `make families`; parts of an attribution add up within every layer, a head that is off equals a hand-written hook.
**For each kind** in `whole/test_kinds`: half precision, sums_close...; padding, a_padded_row..., padding_leaves...;
eager and sdpa, eager_and_fused..., a_kind_with_the_eager...; a cache under edits, a_cache_under...; layers elsewhere
by `device_map`, weights_that_are_elsewhere..., weights_that_accelerate_would...; on two devices,
`whole/test_second_device`.
**Compiled** in place or wrapped: `whole/test_compiled`, all.
**Adapters**: unmerged_adapters_are..., sub_updates_of_an_adapted..., an_adapted_model_in_half...; LoRA and DoRA of
PEFT, peft_models_open...; a module that is not linear, a_projection_that_is_not_linear...
**Quantised**: packed_layouts_are..., torchao_weight_only..., bitsandbytes_4bit..., bitsandbytes_int8...,
dynamically_quantized_models..., a_dynamically_quantized_ffn...
**Dense and expert layers** together: a_model_that_mixes...; other shapes are refused: models_of_other_shapes...
**Without values or with a latent**: sources_of_gated_and_latent...; a refusal names the part:
a_refusal_of_sources..., a_refusal_of_a_qk_circuit..., a_refusal_names_the_part...
**Mixers without attention**: a_mixer_is_a_writer..., edits_of_a_mixers_heads..., indexes_events_and_steering...
**Streams that are rescaled or several**: the_scale_of_a_later_layer..., a_norm_on_the_stream_itself...,
a_gain_per_channel..., in circuits `attention/test_stream_gains` the_factors_between..., in path expansion
`attention/test_expansion` paths_add_up_through..., layers_that_use_the_keys..., a_stream_that_is_halved...,
a_writers_share_is_what...; what needs one stream, what_needs_one_stream...
**Experts**: coefficients_are_gate_weight..., coefficients_times_values..., switching_a_memory_off...,
edits_hold_with_a_cache..., memories_of_experts_are_numbered...; triggers only where routed, equal to a full sort:
`sweeps/reducers/test_top_triggers` equal_to_sorting..., a_sweep_for_an_index_never...; routers: router_tokens_are...,
shares_and_tokens...; reports: memories_of_experts_and_of_dense...; clusters: a_tenth_of_the_values...; gallery:
a_memory_of_an_expert...; the page: `browser/test_other_models`. Bytes of a large index and the cost of a sweep are in
benchmarks/RESULTS.md.
**Dictionaries** in `dictionaries/whole/test_dictionaries`: features_are_those..., a_dictionary_written_in_saelens...,
gemma_scopes_layout..., a_cross_layer_transcoder..., an_attribution_by_feature..., edits_keep_the_error...,
triggers_are_what_sorting..., readings_search..., training_explains...
"""
