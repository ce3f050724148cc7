"""Calls of functions, and answers that follow a schema."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-13": report(
        "The first piece of a streamed call has another form than clients expect",
        "ggml-org/llama.cpp#13800 ggml-org/llama.cpp#22722",
        """
        api/test_tools.py::test_a_streamed_call_has_the_chunks_that_clients_expect
        api/test_tools.py::test_a_stream_assembles_to_the_whole_answer
        field_reports/test_fr_c_tools.py::test_streamed_arguments_are_the_plain_ones_and_come_while_they_are_written
        """,
    ),
    "FR-14": report(
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
    "FR-15": report(
        "Broken arguments in a history are taken for a fault of the server",
        "ggml-org/llama.cpp#25510 am17an/llama.cpp#43",
        """
        api/test_tools.py::test_broken_arguments_in_the_history_are_the_clients_fault
        api/test_tools.py::test_empty_arguments_are_none
        api/test_responses_input.py::test_what_does_not_fit_is_refused_by_path
        field_reports/test_fr_c_tools.py::test_broken_arguments_of_the_history_are_refused_by_their_place
        """,
    ),
    "FR-16": report(
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
    "FR-17": report(
        "Calls that are not wanted are made, or not wanting them is an error",
        "vllm-project/vllm#9426 vllm-project/vllm#10000 vllm-project/vllm#54808",
        """
        api/test_tools.py::test_no_call_is_made_where_none_is_wanted
        api/test_responses_tools.py::test_calls_that_may_or_must_not_be
        field_reports/test_fr_c_tools.py::test_a_model_that_begs_for_a_call_makes_none_where_none_is_wanted
        """,
    ),
    "FR-18": report(
        "A turn of calls without text is refused or dropped",
        "lmstudio-ai/lmstudio-bug-tracker#261 abetlen/llama-cpp-python#1805 InternLM/lmdeploy#4035"
        " cubist38/mlx-openai-server#205",
        """
        api/test_tools.py::test_a_turn_of_calls_needs_no_text
        chat/test_tools.py::test_no_content_and_empty_content_beside_calls_are_one_prompt
        field_reports/test_fr_c_tools.py::test_a_turn_of_calls_without_text_is_one_prompt_however_it_is_written
        """,
    ),
    "FR-19": report(
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
    "FR-20": report(
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
    "FR-21": report(
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
    "FR-22": report(
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
    "FR-23": report(
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
}
