"""What operators and clients count on, on every route."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-49": report(
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
    "FR-50": report(
        "A busy server cannot be reached",
        "ggml-org/llama.cpp#5850 ggml-org/llama.cpp#5247",
        """
        api/test_batching.py::test_open_streams_take_nothing_that_other_routes_need
        api/test_protocol.py::test_a_large_prompt_does_not_hold_up_small_ones
        e2e/test_lifecycle.py::test_other_routes_answer_during_a_prefill
        """,
    ),
    "FR-51": report(
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
    "FR-52": report(
        "A call on Responses has one id where two are needed",
        "ggml-org/llama.cpp#20607 ggml-org/llama.cpp#21174",
        """
        api/test_responses_reply.py::test_calls_are_items_with_two_ids
        api/test_responses_tools.py::test_a_call_streamed_and_whole_and_its_follow_up
        clients/test_openai_responses.py::test_calls_are_parsed_and_replayed
        """,
    ),
    "FR-53": report(
        "The input of Responses as clients send it is refused",
        "anomalyco/opencode#42613 ggml-org/llama.cpp#21174",
        """
        api/test_responses.py::test_it_has_the_prompt_and_the_answer_of_the_chat
        api/test_responses_input.py::test_items_as_clients_send_them_are_the_equivalent_chat
        api/test_responses_tools.py::test_tools_are_refused_by_path
        """,
    ),
    "FR-54": report(
        "Streams of Messages begin with no input tokens",
        "sgl-project/sglang#20678 mlx-node/mlx-node#45",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-55": report(
        "Streams of Messages lose the first piece of a call",
        "vllm-project/vllm#34887",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-56": report(
        "The newer name of the token limit is ignored",
        "abetlen/llama-cpp-python#1907 lvyufeng/PocketLLM#244",
        """
        api/test_validation.py::test_the_newer_limit_wins
        field_reports/test_fr_jk_clients.py::test_the_newer_limit_is_honoured
        """,
    ),
    "FR-57": report(
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
    "FR-58": report(
        "Embeddings in the form of OpenAI's",
        "mozilla-ai/llamafile#171 lmstudio-ai/lmstudio-bug-tracker#756 vllm-project/vllm#6744",
        """
        field_reports/test_fr_jk_clients.py::test_a_route_that_comes_later_says_so_by_name
        api/test_http.py::test_routes_that_come_later_are_501_by_name
        """,
    ),
    "FR-59": report(
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
    "FR-60": report(
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
