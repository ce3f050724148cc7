"""Sixty reports of what broke for users of other local servers, and the tests that hold each of them here.

A source is a public issue or pull request, ``owner/repository#number``; the titles are our own words. A
report that comes back fails one of its tests. Reports 54, 55 and 58 concern routes that come later: until
then these answer 501 by name, and their tests say so.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """One kind of failure: where it was seen, and the tests that would fail."""

    title: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """``path::function`` below ``tests/``."""


def _report(title: str, sources: str, tests: str) -> Report:
    return Report(title, tuple(sources.split()), tuple(tests.split()))


REPORTS: dict[str, Report] = {
    "FR-01": _report(
        "The beginning of a stop string that spans tokens reaches the client",
        "vllm-project/vllm#3574 SharpAI/SwiftLM#126 mzau/mlx-knife#68"
        " huggingface/text-generation-inference#1254",
        """
        api/test_text_boundaries.py::test_a_stop_string_over_several_tokens_never_shows
        api/test_structured.py::test_stop_strings_count_inside_json
        engine/test_text.py::test_equals_the_naive_search_for_any_split
        engine/test_text.py::test_generation_ends_at_the_token_that_completes_the_stop
        e2e/test_answers.py::test_stop_strings
        field_reports/test_fr_a_text.py::test_a_stop_string_ends_the_answer_at_its_token
        """,
    ),
    "FR-02": _report(
        "Text that was held back as a possible stop string is lost",
        "ggml-org/llama.cpp#9867 LostRuins/koboldcpp#1031",
        """
        api/test_text_boundaries.py::test_text_that_is_held_back_is_not_lost
        engine/test_text.py::test_holds_back_exactly_what_could_become_a_stop
        engine/test_text.py::test_field_reports_1_and_2
        e2e/test_answers.py::test_a_stop_string_that_is_never_completed_takes_nothing_away
        field_reports/test_fr_a_text.py::test_text_before_a_stop_string_and_held_text_arrive
        """,
    ),
    "FR-03": _report(
        "Characters of several tokens become replacement marks",
        "ggml-org/llama.cpp#4036 abetlen/llama-cpp-python#57 Blaizzy/mlx-vlm#1076 ikawrakow/ik_llama.cpp#780",
        """
        api/test_text_boundaries.py::test_a_character_of_several_tokens_is_whole
        api/test_logprobs.py::test_no_character_is_broken
        api/test_logprobs.py::test_a_character_of_several_tokens_shows_all_of_them_at_once
        api/test_tools_on_models.py::test_any_text_can_be_forced
        e2e/test_answers.py::test_characters_of_several_tokens
        tokenizer/test_detokenizer.py::test_valid_text_cut_anywhere_never_shows_a_replacement
        field_reports/test_fr_a_text.py::test_a_character_of_several_tokens_is_never_broken
        field_reports/test_fr_a_text.py::test_a_forced_text_of_long_characters_is_whole
        """,
    ),
    "FR-04": _report(
        "Bytes that are no UTF-8 cost the whole answer",
        "unslothai/llama.cpp#202 Luce-Org/lucebox#641",
        """
        api/test_text_boundaries.py::test_ill_formed_bytes_are_marks
        api/test_real_depth.py::test_a_lone_byte_of_the_vocabulary
        e2e/test_answers.py::test_bytes_that_are_no_characters
        tokenizer/test_detokenizer.py::test_each_ill_formed_part_becomes_one_replacement_character
        field_reports/test_fr_a_text.py::test_a_lone_lead_byte_is_one_mark_each
        field_reports/test_fr_a_text.py::test_ill_formed_bytes_spare_their_neighbours
        """,
    ),
    "FR-05": _report(
        "A stream with an error stays open, or a refusal comes as a stream",
        "EricLBuehler/mistral.rs#1874 felladrin/MiniSearch#2339",
        """
        api/test_validation.py::test_a_refused_stream_is_json_with_a_status
        api/test_streams.py::test_a_failed_step_ends_a_stream_with_an_error_event
        api/test_responses.py::test_a_failing_step_ends_the_stream_with_an_error_event
        robustness/test_faults.py::test_a_fault_of_one_request_is_its_own
        robustness/test_faults.py::test_a_step_that_fails_takes_its_own_requests_only
        field_reports/test_fr_a_text.py::test_a_refused_stream_never_was_one
        """,
    ),
    "FR-06": _report(
        "Usage in streams comes unasked, in another form, or not at all",
        "Arthur-Ficial/apfel#100 ROCm/ATOM#1711 ogx-ai/ogx#6541 cline/cline#10148",
        """
        api/test_streams.py::test_usage_is_not_sent_unasked
        api/test_streams.py::test_usage_comes_once_between_the_finish_reason_and_the_end
        """,
    ),
    "FR-07": _report(
        "Token ids are not those of the model's own tokenizer",
        "ggml-org/llama.cpp#23252 ggml-org/llama.cpp#11054",
        """
        tokenizer/test_llama_cpp_cases.py::test_smollm2
        tokenizer/test_llama_cpp_cases.py::test_qwen
        tokenizer/test_llama_cpp_cases.py::test_gemma
        tokenizer/test_llama_cpp_cases.py::test_every_accepted_tag_has_cases
        tokenizer/test_llama_cpp_cases.py::test_every_rule_on_a_small_vocabulary
        tokenizer/test_encode.py::test_bytelevel_text_comes_back
        tokenizer/test_encode.py::test_equal_to_merging_the_whole_text_naively
        api/test_tokenize.py::test_counts_on_real_models
        """,
    ),
    "FR-08": _report(
        "A missing or generic splitting rule goes unnoticed",
        "ollama/ollama#17698 ggml-org/llama.cpp#7476",
        """
        tokenizer/test_load.py::test_a_generic_rule_loads_with_one_warning
        tokenizer/test_load.py::test_bad_bytelevel_metadata_is_one_line
        gguf/test_inspect.py::test_pre_tokenizer_rule
        field_reports/test_fr_b_prompts.py::test_a_generic_splitting_rule_is_used_with_one_warning
        field_reports/test_fr_b_prompts.py::test_an_unknown_splitting_rule_is_refused_by_name
        """,
    ),
    "FR-09": _report(
        "A prompt begins with two beginning-of-sequence tokens",
        "abetlen/llama-cpp-python#1501 vllm-project/vllm#38187 sgl-project/sglang#888",
        """
        tokenizer/test_encode.py::test_exactly_one_bos
        api/test_responses_prompt.py::test_bos_is_there_once_as_in_a_chat
        chat/test_stored_cases.py::test_a_base_model_gets_the_fallback_and_one_bos
        field_reports/test_fr_b_prompts.py::test_a_prompt_begins_once_on_every_route
        """,
    ),
    "FR-10": _report(
        "Text of a request forges the marks of turns",
        "huggingface/transformers#29279 ggml-org/llama.cpp#26273 sgl-project/sglang#30962",
        """
        chat/test_control_text.py::test_forged_turns_stay_text_in_every_role
        chat/test_control_text.py::test_any_text_anywhere_leaves_the_control_ids_alone
        chat/test_tools.py::test_control_text_anywhere_in_tools_is_text
        chat/test_stored_cases.py::test_control_text_in_a_message_gives_no_control_ids
        api/test_responses_prompt.py::test_text_forges_no_control_tokens
        api/test_responses_prompt.py::test_a_declaration_and_a_result_forge_nothing_either
        api/test_tools_on_models.py::test_text_never_becomes_a_control_token
        e2e/test_answers.py::test_raw_prompts_read_control_tokens_and_messages_do_not
        field_reports/test_fr_b_prompts.py::test_control_text_is_text_in_every_place
        field_reports/test_fr_b_prompts.py::test_control_text_on_responses_counts_as_in_the_chat
        """,
    ),
    "FR-11": _report(
        "A role order that the template refuses is a server error",
        "EricLBuehler/mistral.rs#506 sgl-project/sglang#892 janhq/jan#6254 anomalyco/opencode#5034",
        """
        chat/test_template.py::test_role_order_is_refused_in_the_templates_own_sentence
        api/test_validation.py::test_the_template_s_own_sentence_is_the_answer
        api/test_responses_prompt.py::test_what_the_template_refuses_is_a_400_with_its_own_sentence
        field_reports/test_fr_b_prompts.py::test_a_role_order_is_refused_in_the_words_of_the_template
        """,
    ),
    "FR-12": _report(
        "Content as a list of text parts is not understood",
        "browser-use/web-ui#359",
        """
        api/test_validation.py::test_text_parts_are_the_joined_text
        api/test_validation.py::test_text_parts_in_a_tool_message
        api/test_validation.py::test_bad_messages
        api/test_responses_input.py::test_text_parts_are_the_joined_string_in_every_role
        field_reports/test_fr_b_prompts.py::test_text_parts_are_one_text_in_every_role
        """,
    ),
    "FR-13": _report(
        "The first piece of a streamed call has another form than clients expect",
        "ggml-org/llama.cpp#13800 ggml-org/llama.cpp#22722",
        """
        api/test_tools.py::test_a_streamed_call_has_the_chunks_that_clients_expect
        api/test_tools.py::test_a_stream_assembles_to_the_whole_answer
        field_reports/test_fr_c_tools.py::test_streamed_arguments_are_the_plain_ones_and_come_while_they_are_written
        """,
    ),
    "FR-14": _report(
        "Streamed arguments are not the plain ones, or come at the end only",
        "vllm-project/vllm#51577 ggml-org/llama.cpp#23173",
        """
        api/test_tools.py::test_arguments_are_the_same_in_a_stream_and_arrive_while_they_are_written
        toolcalls/test_calls.py::test_arguments_flow_while_they_are_written
        toolcalls/test_calls.py::test_any_arguments_in_any_pieces
        api/test_tools.py::test_a_slow_reader_gets_the_same_call
        field_reports/test_fr_c_tools.py::test_streamed_arguments_are_the_plain_ones_and_come_while_they_are_written
        field_reports/test_fr_c_tools.py::test_a_reader_who_falls_behind_gets_the_same_arguments
        """,
    ),
    "FR-15": _report(
        "Broken arguments in a history are taken for a fault of the server",
        "ggml-org/llama.cpp#25510 am17an/llama.cpp#43",
        """
        api/test_tools.py::test_broken_arguments_in_the_history_are_the_clients_fault
        api/test_tools.py::test_empty_arguments_are_none
        api/test_responses_input.py::test_what_does_not_fit_is_refused_by_path
        field_reports/test_fr_c_tools.py::test_broken_arguments_of_the_history_are_refused_by_their_place
        """,
    ),
    "FR-16": _report(
        "A demanded call may fail to come",
        "jundot/omlx#2877 vllm-project/vllm#54808 vllm-project/vllm#50477 vllm-project/vllm#49712"
        " google-ai-edge/LiteRT-LM#2471",
        """
        api/test_tools.py::test_a_demanded_call_is_made_whatever_the_model_would_say
        api/test_tools.py::test_a_choice_that_cannot_be_kept_is_refused
        api/test_responses_tools.py::test_calls_that_may_or_must_not_be
        api/test_responses_model.py::test_a_demanded_call_always_comes
        api/test_tools_on_models.py::test_a_demanded_call_is_made_with_every_seed
        toolcalls/test_grammar.py::test_a_forced_answer_is_calls_of_declared_functions_that_follow_their_schemas
        field_reports/test_fr_c_tools.py::test_a_demanded_call_is_made_with_every_seed
        field_reports/test_fr_c_tools.py::test_a_choice_that_cannot_be_kept_is_refused_by_its_name
        """,
    ),
    "FR-17": _report(
        "Calls that are not wanted are made, or not wanting them is an error",
        "vllm-project/vllm#9426 vllm-project/vllm#10000 vllm-project/vllm#54808",
        """
        api/test_tools.py::test_no_call_is_made_where_none_is_wanted
        api/test_responses_tools.py::test_calls_that_may_or_must_not_be
        field_reports/test_fr_c_tools.py::test_a_model_that_begs_for_a_call_makes_none_where_none_is_wanted
        """,
    ),
    "FR-18": _report(
        "A turn of calls without text is refused or dropped",
        "lmstudio-ai/lmstudio-bug-tracker#261 abetlen/llama-cpp-python#1805 InternLM/lmdeploy#4035"
        " cubist38/mlx-openai-server#205",
        """
        api/test_tools.py::test_a_turn_of_calls_needs_no_text
        chat/test_tools.py::test_no_content_and_empty_content_beside_calls_are_one_prompt
        field_reports/test_fr_c_tools.py::test_a_turn_of_calls_without_text_is_one_prompt_however_it_is_written
        """,
    ),
    "FR-19": _report(
        "A schema that cannot be enforced is ignored",
        "ggml-org/llama.cpp#19051",
        """
        grammar/test_schema.py::test_a_keyword_that_is_not_enforced_is_refused_at_the_root_and_nested
        grammar/test_field_cases.py::test_an_escape_without_meaning_is_the_character
        api/test_structured.py::test_a_schema_that_cannot_be_enforced_is_refused_by_keyword_and_place
        api/test_tools.py::test_tools_that_cannot_be_had_are_refused_by_their_place
        api/test_responses_tools.py::test_a_schema_that_cannot_be_had_is_refused_by_keyword
        field_reports/test_fr_c_tools.py::test_a_schema_is_followed_in_every_place_that_takes_one
        field_reports/test_fr_c_tools.py::test_a_schema_that_cannot_be_had_is_refused_in_every_place
        """,
    ),
    "FR-20": _report(
        "A pattern ends the process, or counts at the top only",
        "ggml-org/llama.cpp#12252 ggml-org/llama.cpp#25895",
        """
        grammar/test_field_cases.py::test_a_pattern_deep_in_arrays_is_the_pattern_at_the_top
        grammar/test_patterns.py::test_what_cannot_be_enforced_is_said
        grammar/test_patterns.py::test_a_text_is_allowed_exactly_when_it_matches
        api/test_structured.py::test_what_common_libraries_write_is_followed
        field_reports/test_fr_c_tools.py::test_a_schema_is_followed_in_every_place_that_takes_one
        field_reports/test_fr_c_tools.py::test_a_schema_that_cannot_be_had_is_refused_in_every_place
        """,
    ),
    "FR-21": _report(
        "References between definitions and values that may be null are not understood",
        "abetlen/llama-cpp-python#1048 abetlen/llama-cpp-python#1097 ggml-org/llama.cpp#16790",
        """
        grammar/test_field_cases.py::test_definitions_refer_to_each_other_and_are_used_twice
        grammar/test_field_cases.py::test_this_or_null_needs_no_type_outside
        grammar/test_field_cases.py::test_a_tree_by_a_reference_into_an_array
        grammar/test_schema.py::test_a_reference_that_leads_nowhere_is_quoted
        grammar/test_recursion.py::test_recursion_that_can_end_is_followed
        api/test_structured.py::test_what_common_libraries_write_is_followed
        field_reports/test_fr_c_tools.py::test_a_schema_is_followed_in_every_place_that_takes_one
        field_reports/test_fr_c_tools.py::test_a_schema_that_cannot_be_had_is_refused_in_every_place
        """,
    ),
    "FR-22": _report(
        "JSON never ends for all the blanks in it",
        "jundot/omlx#2990 ollama/ollama#2577 Avarok-Cybersecurity/atlas#143",
        """
        grammar/test_constraint.py::test_whitespace_between_json_tokens_is_bounded_and_never_outside
        grammar/test_constraint.py::test_whoever_likes_blanks_best_comes_to_an_end
        api/test_structured.py::test_nothing_stands_behind_the_object
        api/test_tools_on_models.py::test_json_does_not_drown_in_blanks
        field_reports/test_fr_c_tools.py::test_blanks_between_json_tokens_come_to_an_end
        """,
    ),
    "FR-23": _report(
        "A schema holds up or ends the server",
        "ggml-org/llama.cpp#25283 ggml-org/llama.cpp#19008 ggml-org/llama.cpp#25746 sgl-project/sglang#39125",
        """
        grammar/test_field_cases.py::test_deep_nesting_is_refused_at_once
        grammar/test_field_cases.py::test_a_long_nested_text_keeps_its_limit
        grammar/test_field_cases.py::test_a_schema_made_to_be_slow_is_compiled_or_refused
        api/test_structured.py::test_a_schema_beyond_a_limit_is_refused
        api/test_structured.py::test_long_texts_are_within_the_limits
        api/test_structured.py::test_a_running_stream_goes_on_while_schemas_are_refused
        api/test_structured.py::test_schemas_are_compiled_by_prompt_workers_and_once
        api/test_tools.py::test_compiling_has_a_time_budget
        field_reports/test_fr_c_tools.py::test_a_schema_is_followed_in_every_place_that_takes_one
        field_reports/test_fr_c_tools.py::test_a_schema_that_cannot_be_had_is_refused_in_every_place
        field_reports/test_fr_c_tools.py::test_deep_nesting_is_refused_in_every_place
        """,
    ),
    "FR-24": _report(
        "A client leaves and its request goes on",
        "ggml-org/llama.cpp#24496 peonist-ai/halogen-flash-server#58 JustVugg/colibri#908"
        " JustVugg/colibri#956",
        """
        api/test_batching.py::test_when_a_client_leaves_the_next_starts_within_a_step
        api/test_batching.py::test_a_client_that_leaves_the_line_is_cancelled_but_not_stopped
        api/test_streams.py::test_a_client_that_leaves_stops_its_generation
        e2e/test_abandoned.py::test_the_next_request_runs_at_once
        e2e/test_abandoned.py::test_who_leaves_the_line_never_runs
        """,
    ),
    "FR-25": _report(
        "Long prompts stop the streams of others",
        "ggml-org/llama.cpp#29175 kekzl/imp#1643 FlashML-org/FreeToken#483",
        """
        engine/test_engine_steps.py::test_long_prompts_do_not_stall_a_running_stream
        engine/test_pace.py::test_long_prompt_among_four_streams_stretches_no_step_beyond_the_bound
        engine/test_pace.py::test_a_prompt_is_left_out_of_at_most_one_step_in_a_row_and_few_in_all
        e2e/test_batching.py::test_a_stream_advances_in_every_step_while_long_prompts_come
        field_reports/test_fr_d_scheduling.py::test_a_stream_goes_on_in_every_step_of_long_prompts
        """,
    ),
    "FR-26": _report(
        "A full server looks like a broken one",
        "pytorch/serve#3342 pytorch/serve#2764 tenstorrent/tt-inference-server#863 vllm-project/vllm#41250"
        " openai/openai-python#3803",
        """
        api/test_batching.py::test_a_full_server_refuses_at_once_and_is_not_at_fault
        api/test_streams.py::test_overload_is_429_at_once
        e2e/test_batching.py::test_the_ninth_request_is_refused_and_told_when_to_come_back
        """,
    ),
    "FR-27": _report(
        "An answer holds what only another request said",
        "ml-explore/mlx-lm#965 ggml-org/llama.cpp#6681",
        """
        e2e/test_under_load.py::test_no_answer_holds_anothers_code_word
        engine/test_engine_steps.py::test_neighbours_and_chunking_change_nothing
        field_reports/test_fr_d_scheduling.py::test_sixteen_answers_are_those_of_one_at_a_time
        """,
    ),
    "FR-28": _report(
        "A prefix from the cache changes the answer",
        "tenstorrent/vllm#415 vllm-project/vllm#7845 vllm-project/vllm#54490 ovg-project/kvcached#446",
        """
        e2e/test_prefix_cache.py::test_the_same_prompt_four_times
        e2e/test_prefix_cache.py::test_sampled_and_penalised_answers_are_those_of_the_cold_run
        engine/test_logprobs.py::test_they_are_the_same_shared_and_on_a_prefix_hit
        engine/test_native.py::test_cached_answer_is_the_uncached_one
        field_reports/test_fr_e_cache.py::test_the_same_prompt_four_times
        field_reports/test_fr_e_cache.py::test_the_same_chat_four_times
        """,
    ),
    "FR-29": _report(
        "After a reuse the question before is answered",
        "nicedreamzapp/claude-code-local#46",
        """
        e2e/test_prefix_cache.py::test_the_answer_is_to_the_new_question
        engine/test_prefix_reuse.py::test_prompt_that_differs_is_reused_up_to_the_difference
        kv/test_prefix.py::test_an_edited_prompt_reuses_nothing_from_the_first_changed_token_on
        field_reports/test_fr_e_cache.py::test_the_new_question_is_answered
        """,
    ),
    "FR-30": _report(
        "Reuse stops working and nobody is told",
        "ggml-org/llama.cpp#14113",
        """
        e2e/test_prefix_cache.py::test_a_chat_of_five_turns_evaluates_only_new_text
        engine/test_prefix_reuse.py::test_every_turn_of_a_chat_reuses_the_one_before
        api/test_prefix.py::test_every_turn_of_a_chat_continues_the_one_before
        api/test_prefix.py::test_without_the_option_a_key_changes_nothing
        """,
    ),
    "FR-31": _report(
        "The limit of the cache's memory is none",
        "ggml-org/llama.cpp#22629 ggml-org/llama.cpp#20509 ollama/ollama#18264",
        """
        robustness/test_cache_limits.py::test_two_hundred_prompts_and_one_that_is_too_large
        kv/test_prefix.py::test_room_is_made_before_references_are_taken
        kv/test_prefix.py::test_an_oversized_snapshot_is_not_kept_and_pushes_nothing_out
        api/test_prefix.py::test_the_limits_hold_at_every_moment
        field_reports/test_fr_e_cache.py::test_the_limits_of_the_cache_and_the_memory_that_was_told_hold
        """,
    ),
    "FR-32": _report(
        "Memory or speed goes with the number of requests",
        "ollama/ollama#18106 ggml-org/llama.cpp#22360",
        """
        e2e/test_soak.py::test_a_mix_of_requests_leaves_nothing_behind
        engine/test_engine_steps.py::test_cancel_in_every_stage_frees_everything_within_one_step
        api/test_structured.py::test_the_cache_keeps_to_its_limits_and_drops_the_least_recently_used
        robustness/test_clients.py::test_ten_thousand_connections_come_and_go
        """,
    ),
    "FR-33": _report(
        "A template that rewrites the history makes reuse small",
        "QwenLM/Qwen3.8#48 QwenLM/Qwen3.8#131 nibor1896/Crow#60",
        """
        e2e/test_prefix_cache.py::test_a_template_that_rewrites_the_history_is_told_truly
        e2e/test_prefix_cache.py::test_a_chat_of_five_turns_evaluates_only_new_text
        chat/test_tools.py::test_replaying_a_streamed_call_gives_the_ids_that_the_model_wrote
        api/test_reasoning.py::test_reasoning_can_be_told_again
        """,
    ),
    "FR-34": _report(
        "Greedy answers depend on the load",
        "ggml-org/llama.cpp#7052 ggml-org/llama.cpp#6950 vllm-project/vllm#23138",
        """
        e2e/test_determinism.py::test_alone_and_among_others
        e2e/test_determinism.py::test_other_kernels_threads_and_storage
        e2e/test_under_load.py::test_one_prompt_eight_times
        engine/test_native_logprobs.py::test_they_have_the_same_bits_in_any_company
        field_reports/test_fr_f_sampling.py::test_log_probabilities_are_the_same_bits_in_any_company
        """,
    ),
    "FR-35": _report(
        "A seed does nothing, or its absence does",
        "ggml-org/llama.cpp#8593 ggml-org/llama.cpp#6955 tenstorrent/vllm#225",
        """
        e2e/test_determinism.py::test_seeds
        e2e/test_under_load.py::test_a_seed_is_kept_under_load
        sampling/test_sampler.py::test_a_seed_fixes_the_tokens
        api/test_validation.py::test_the_whole_range_of_seeds_reaches_the_sampler
        api/test_validation.py::test_a_bad_value_is_a_400_that_names_the_field
        field_reports/test_fr_f_sampling.py::test_a_seed_is_used_and_its_absence_too
        """,
    ),
    "FR-36": _report(
        "Log-probabilities are something else than their name says",
        "vllm-project/vllm#9453 ollama/ollama#16196 standardcompletions/rfcs#11 ggml-org/llama.cpp#10783"
        " ggml-org/llama.cpp#7197",
        """
        sampling/test_masked.py::test_logprobs_are_the_log_softmax
        sampling/test_masked.py::test_the_probabilities_of_a_row_sum_to_one
        sampling/test_masked.py::test_logprobs_are_those_before_anything_changes_the_logits
        api/test_real_depth.py::test_log_probabilities_are_the_model_s_own
        engine/test_real_model.py::test_log_probabilities_are_the_log_softmax_of_the_logits
        field_reports/test_fr_f_sampling.py::test_log_probabilities_describe_the_model_and_not_the_sampling
        field_reports/test_fr_f_sampling.py::test_log_probabilities_under_a_grammar_are_the_model_s_own
        field_reports/test_fr_f_sampling.py::test_the_likeliest_are_really_the_likeliest
        """,
    ),
    "FR-37": _report(
        "A very small limit is exceeded",
        "ggml-org/llama.cpp#4047 ggml-org/llama.cpp#4790",
        """
        api/test_text_boundaries.py::test_small_limits_hold_inside_a_character
        api/test_responses.py::test_a_small_budget_is_kept
        api/test_echo.py::test_a_text_is_scored_without_a_token_of_its_own
        e2e/test_answers.py::test_small_limits_inside_a_character
        field_reports/test_fr_f_sampling.py::test_a_small_budget_is_never_exceeded
        field_reports/test_fr_f_sampling.py::test_no_tokens_are_a_score_or_a_refusal
        """,
    ),
    "FR-38": _report(
        "A limit that nobody set ends the answer, or nothing does",
        "JustVugg/colibri#382 ggml-org/llama.cpp#9368 ggml-org/llama.cpp#6638",
        """
        api/test_validation.py::test_the_default_and_the_hard_limit
        api/test_responses.py::test_the_server_s_limits_are_the_only_ones
        api/test_batching.py::test_limits_hold_when_batching
        """,
    ),
    "FR-39": _report(
        "A bias on tokens does nothing",
        "ggml-org/llama.cpp#13605 ggml-org/llama.cpp#19699",
        """
        api/test_real_depth.py::test_a_bias_bans_and_forces
        api/test_real_depth.py::test_a_grammar_wins_over_a_bias
        sampling/test_sampler.py::test_banned_tokens_never_come_and_a_forced_one_does
        e2e/test_answers.py::test_logit_bias_bans_and_forces
        field_reports/test_fr_f_sampling.py::test_a_bias_bans_and_forces_everywhere
        """,
    ),
    "FR-40": _report(
        "Too long a prompt is cut without a word",
        "ollama/ollama#3839 ollama/ollama#17944 esengine/DeepSeek-Reasonix#10245 ggml-org/llama.cpp#17284",
        """
        api/test_validation.py::test_prompt_plus_budget_must_fit
        api/test_responses.py::test_what_does_not_fit_into_the_context_is_refused_with_the_numbers
        e2e/test_answers.py::test_a_context_that_is_full
        field_reports/test_fr_g_validation.py::test_too_long_a_prompt_is_refused_before_any_work
        """,
    ),
    "FR-41": _report(
        "Absurd numbers hold up the server",
        "ggml-org/llama.cpp#19367",
        """
        api/test_validation.py::test_a_bad_value_is_a_400_that_names_the_field
        api/test_validation.py::test_numbers_that_json_does_not_have
        api/test_streams.py::test_refusals_do_not_disturb_a_stream
        field_reports/test_fr_g_validation.py::test_no_wrong_value_disturbs_a_stream_or_the_log
        """,
    ),
    "FR-42": _report(
        "An id outside the vocabulary ends the engine",
        "vllm-project/vllm#16529 vllm-project/vllm#5963 ggml-org/llama.cpp#12178",
        """
        api/test_validation.py::test_bad_prompts
        api/test_streams.py::test_refusals_do_not_disturb_a_stream
        sampling/test_sampler.py::test_tokens_outside_the_vocabulary_are_refused
        field_reports/test_fr_g_validation.py::test_no_wrong_value_disturbs_a_stream_or_the_log
        """,
    ),
    "FR-43": _report(
        "Known fields are accepted and have no effect",
        "dtzp555-max/ocp#470 lvyufeng/PocketLLM#244",
        """
        api/test_fields.py::test_the_table_has_every_field_of_the_client_and_of_the_body
        api/test_fields.py::test_a_value_that_is_not_honoured_is_refused_by_name
        api/test_responses.py::test_the_table_has_every_field_of_the_client_and_of_the_body
        api/test_responses.py::test_a_value_that_is_not_honoured_is_refused_by_name
        api/test_real_depth.py::test_every_honoured_field_has_a_case
        api/test_real_depth.py::test_every_honoured_field_has_an_effect
        clients/test_field_table.py::test_a_field_that_the_client_adds_is_noticed
        field_reports/test_fr_g_validation.py::test_every_honoured_field_of_responses_has_a_case
        field_reports/test_fr_g_validation.py::test_every_honoured_field_of_responses_has_an_effect
        """,
    ),
    "FR-44": _report(
        "Harmless extras of real clients are refused",
        "vllm-project/vllm#10463 OpenCoworkAI/open-cowork#232 voideditor/void#128",
        """
        api/test_fields.py::test_harmless_extras_change_nothing
        api/test_responses.py::test_harmless_extras_change_nothing
        api/test_validation.py::test_bad_messages
        field_reports/test_fr_g_validation.py::test_harmless_extras_of_real_clients_change_nothing
        """,
    ),
    "FR-45": _report(
        "Sizes in a model file overflow or take all memory",
        "ggml-org/llama.cpp#18674 ggml-org/llama.cpp#14595 ggml-org/llama.cpp#19856 ggml-org/ggml#709"
        " ollama/ollama#17042",
        """
        gguf/test_refusals.py::test_a_cut_at_every_byte_is_refused
        gguf/test_refusals.py::test_counts_that_the_limits_or_the_file_cannot_hold
        gguf/test_refusals.py::test_strings_longer_than_the_file
        gguf/test_refusals.py::test_tensor_shapes_and_types
        gguf/test_refusals.py::test_tensor_offsets
        gguf/test_refusals.py::test_overlapping_tensors
        gguf/test_mutations.py::test_claimed_counts_allocate_nothing
        cli/test_commands.py::test_a_file_that_is_no_model_is_one_line_and_status_1
        field_reports/test_fr_h_security.py::test_a_hostile_file_is_refused_at_load
        field_reports/test_fr_h_security.py::test_a_large_vocabulary_takes_work_in_proportion
        """,
    ),
    "FR-46": _report(
        "Metadata of another type or form ends the loader",
        "ggml-org/llama.cpp#26690 ggml-org/llama.cpp#24884 cdxgen/cdxgen#4119",
        """
        gguf/test_metadata.py::test_scores_declared_as_bytes_are_not_read_as_floats
        gguf/test_refusals.py::test_keys
        gguf/test_refusals.py::test_alignment
        gguf/test_refusals.py::test_unknown_value_types
        gguf/test_refusals.py::test_arrays_nested_100_deep
        gguf/test_mutations.py::test_mutated_files
        tokenizer/test_load.py::test_hostile_metadata_is_refused_or_works
        field_reports/test_fr_h_security.py::test_a_hostile_file_is_refused_at_load
        """,
    ),
    "FR-47": _report(
        "A template from a model file runs code",
        "sgl-project/sglang#23660 sgl-project/sglang#25009 guidance-ai/guidance#1475",
        """
        chat/test_sandbox.py::test_nothing_escapes
        chat/test_sandbox.py::test_hostile_work_is_stopped
        chat/test_sandbox.py::test_exactly_one_place_compiles_templates
        field_reports/test_fr_h_security.py::test_a_template_that_attacks_is_a_400_on_every_route
        """,
    ),
    "FR-48": _report(
        "The key protects some routes only",
        "abetlen/llama-cpp-python#1010 ggml-org/llama.cpp#14352 maximhq/bifrost#7175 huggingface/pi-llama#26",
        """
        api/test_auth.py::test_without_the_key_every_protected_path_is_401
        api/test_auth.py::test_the_scheme_is_read_in_any_case
        api/test_auth.py::test_the_router_has_no_other_open_route
        e2e/test_answers.py::test_without_the_key_nothing_is_read
        field_reports/test_fr_h_security.py::test_every_path_of_the_router_needs_the_key_or_is_on_the_open_list
        """,
    ),
    "FR-49": _report(
        "Metrics cannot be parsed, or change because somebody looked",
        "ggml-org/llama.cpp#17384 ggml-org/llama.cpp#5850 ggml-org/llama.cpp#25128",
        """
        api/test_metrics.py::test_before_any_request_what_was_not_measured_is_absent
        api/test_metrics.py::test_two_readers_see_the_same_and_reading_moves_nothing
        api/test_metrics.py::test_counters_only_grow
        api/test_metrics.py::test_the_sums_are_the_usage_that_clients_got
        api/test_stats.py::test_reading_changes_nothing
        """,
    ),
    "FR-50": _report(
        "A busy server cannot be reached",
        "ggml-org/llama.cpp#5850 ggml-org/llama.cpp#5247",
        """
        api/test_batching.py::test_open_streams_take_nothing_that_other_routes_need
        api/test_protocol.py::test_a_large_prompt_does_not_hold_up_small_ones
        e2e/test_lifecycle.py::test_other_routes_answer_during_a_prefill
        """,
    ),
    "FR-51": _report(
        "Streams of Responses lack events or fields",
        "ogx-ai/ogx#5309 Oaklight/llm-rosetta#56 Sophomoresty/gemini-web2api#57 ggml-org/llama.cpp#24957"
        " BerriAI/litellm#28899",
        """
        api/test_responses_reply.py::test_text_is_the_sequence_that_clients_know
        api/test_responses_reply.py::test_the_pieces_do_not_matter
        clients/test_openai_responses.py::test_a_stream
        clients/test_openai_responses.py::test_raw_answers_are_the_client_s_types_to_the_letter
        api/test_responses.py::test_the_streamed_response_is_the_whole_one
        """,
    ),
    "FR-52": _report(
        "A call on Responses has one id where two are needed",
        "ggml-org/llama.cpp#20607 ggml-org/llama.cpp#21174",
        """
        api/test_responses_reply.py::test_calls_are_items_with_two_ids
        api/test_responses_tools.py::test_a_call_streamed_and_whole_and_its_follow_up
        clients/test_openai_responses.py::test_calls_are_parsed_and_replayed
        """,
    ),
    "FR-53": _report(
        "The input of Responses as clients send it is refused",
        "anomalyco/opencode#42613 ggml-org/llama.cpp#21174",
        """
        api/test_responses.py::test_it_has_the_prompt_and_the_answer_of_the_chat
        api/test_responses_input.py::test_items_as_clients_send_them_are_the_equivalent_chat
        api/test_responses_tools.py::test_tools_are_refused_by_path
        """,
    ),
    "FR-54": _report(
        "Streams of Messages begin with no input tokens",
        "sgl-project/sglang#20678 mlx-node/mlx-node#45",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-55": _report(
        "Streams of Messages lose the first piece of a call",
        "vllm-project/vllm#34887",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-56": _report(
        "The newer name of the token limit is ignored",
        "abetlen/llama-cpp-python#1907 lvyufeng/PocketLLM#244",
        """
        api/test_validation.py::test_the_newer_limit_wins
        field_reports/test_fr_jk_clients.py::test_the_newer_limit_is_honoured
        """,
    ),
    "FR-57": _report(
        "Several answers to one prompt",
        "abetlen/llama-cpp-python#1906 abetlen/llama-cpp-python#1130 janhq/cortex.llamacpp#264"
        " InternLM/lmdeploy#4419 InternLM/lmdeploy#4841 tenstorrent/tt-inference-server#2721"
        " algorithmicsuperintelligence/optillm#8",
        """
        api/test_choices.py::test_choices_differ_and_come_again
        api/test_choices.py::test_streamed_choices_interleave_and_equal_the_plain_ones
        api/test_choices.py::test_the_prompts_come_one_behind_the_other
        api/test_choices.py::test_the_prompt_is_evaluated_once
        api/test_choices.py::test_each_choice_has_its_own_end
        api/test_choices.py::test_more_choices_than_streams_are_refused
        api/test_real_depth.py::test_three_answers_to_one_question
        field_reports/test_fr_jk_clients.py::test_answers_to_one_prompt
        """,
    ),
    "FR-58": _report(
        "Embeddings in the form of OpenAI's",
        "mozilla-ai/llamafile#171 lmstudio-ai/lmstudio-bug-tracker#756 vllm-project/vllm#6744",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-59": _report(
        "Counting tokens and learning limits before sending",
        "abetlen/llama-cpp-python#21 vercel/ai#17531 huggingface/pi-llama#26",
        """
        api/test_tokenize.py::test_a_chat_is_counted_as_the_same_chat_request
        api/test_tokenize.py::test_the_length_that_is_told_is_the_one_that_is_kept
        api/test_tokenize.py::test_counting_needs_no_permit
        api/test_tokenize.py::test_counts_on_real_models
        field_reports/test_fr_jk_clients.py::test_limits_and_counts_are_told_before_sending
        field_reports/test_fr_jk_clients.py::test_counting_goes_on_while_every_place_is_taken
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        """,
    ),
    "FR-60": _report(
        "Log-probabilities on every route",
        "vllm-project/vllm#2918 bentoml/OpenLLM#784 llm-d/llm-d-inference-sim#462 scaleapi/llm-engine#188",
        """
        api/test_logprobs.py::test_the_form_of_a_chat
        api/test_logprobs.py::test_the_form_of_a_text_completion
        api/test_logprobs.py::test_streamed_entries_are_the_plain_ones
        api/test_logprobs.py::test_wrong_counts_are_refused
        api/test_tools.py::test_ids_log_probabilities_and_padding_beside_calls
        clients/test_openai_responses.py::test_logprobs_are_those_of_the_chat
        clients/test_openai_responses.py::test_logprobs_are_of_visible_tokens_only
        field_reports/test_fr_jk_clients.py::test_log_probabilities_in_the_form_of_the_route
        field_reports/test_fr_jk_clients.py::test_the_three_routes_tell_the_same_numbers
        field_reports/test_fr_jk_clients.py::test_log_probabilities_beside_a_call_are_those_of_the_text
        field_reports/test_fr_jk_clients.py::test_the_form_of_another_route_is_refused_by_name
        """,
    ),
}
