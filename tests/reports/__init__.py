"""Reports: what they promise, and the tests that fail if a promise is broken.

Files are those of this folder, or named; a study's own tests are `test_geva2021`, `test_geva2022`, `test_elhage2021`.

**Verdicts.** Each finding can agree, differ and stay open, on made-up numbers: `test_parts` of each study, whose cases
are the mistakes once made (a higher score of 0.00, an argmin alone, "about 5 %" at 73 %, a trend of the ends alone,
60 % stop words without their base rate, triples no better than shuffled ones, bugs of random tables, erasing without
"before", induction without the partner, heads as important as others).
Every condition is needed: `test_quantities` a_verdict_needs...; no quantity twice: no_quantity_is_counted...; what the
page and `report.json` hold: `test_document` findings_are_counted..., a_number_is_next_to..., `test_quantities`
findings_of_report_json...; control column, marks, cache: `test_random_weights`, all (another draw of weights passes at
most one finding that is called informative).
**The sign of a gated memory**: `whole/test_sign_convention`, all.
**Control heads** nearest in output length: `attention/test_induction` control_heads...; real against random overlap:
`memories/test_norm_overlap`; a candidate's own logit: `memories/test_event_sample` the_change_of...; Olsson's claims
are theirs, one-layer claims are of one layer, the direct path next to its baselines: `elhage2021/test_parts`.
**Tokens never learned** are left out: tokens_that_were_never_learned... of each study.
**Intervals**: `document/test_intervals`, all; what is resampled: `test_quantities` layers_of_an_example...,
updates_of_one_prefix...; the page states it: every_figure..., every_table..., the_report_on_the_two_layer...
**Settings** of an index: `test_geva2021` the_settings_are_those_of_the_index...; small samples are marked, and stand on
the page: `test_geva2022` early_exit_on_few..., `geva2022/test_applications` without_scikit_learn...
**Work is not lost**: without_scikit_learn..., an_import_error_inside..., a_stopped_study... of each study.
**Section 6**: `geva2022/test_applications`, all (the ten values of gpt2-medium, both word filters, beams, edits before
the activation, the text of the perplexity). Published values have an origin, and 1,579 is set against Table 10:
`test_geva2022` every_table...
**Text and triggers**: `test_geva2021` triggers_come_from..., a_gated_memory...; `test_geva2022`
the_shipped_text..., frequently_active..., updates_of_fewer_than_ten..., a_prefix_is_as_short..., an_adaptive_
softmax...; Moses: `corpus/test_moses`; three layers and three bands: `tools/test_train_wikilm` as_many_layers...,
`architectures/test_fairseq`. Compositions of the last layer: `test_quantities` most_compositions...
**Circuits.** Rotary in half precision, every kind, 2,048 offsets: `models/structure/test_rotary`. Centring:
`attention/test_folded_weights`. One writer or reader: `attention/test_weights_between`, `test_memory_connections`;
erasing: `test_erasure`. By offset: `test_by_offset`, `test_induction` matching_is_that_of...; spread and z:
`test_circuits` the_baseline...; orders of path: `test_expansion`; rotation: `test_rotation`; the command line:
`cli/test_circuits`, all; no layers: `models/whole/test_no_layers`; TransformerLens: `parity/test_transformer_lens`.
**Pages**: `test_document`, all (a table has one unit, axes and names apart, equal axes, colour bars, one minus sign);
published values in every figure, and each difference explained: every_figure..., every_table..., the_report_on...
"""
