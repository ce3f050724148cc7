"""Where texts, streams and their numbers end."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-01": report(
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
    "FR-02": report(
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
    "FR-03": report(
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
    "FR-04": report(
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
    "FR-05": report(
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
    "FR-06": report(
        "Usage in streams comes unasked, in another form, or not at all",
        "Arthur-Ficial/apfel#100 ROCm/ATOM#1711 ogx-ai/ogx#6541 cline/cline#10148",
        """
        api/test_streams.py::test_usage_is_not_sent_unasked
        api/test_streams.py::test_usage_comes_once_between_the_finish_reason_and_the_end
        """,
    ),
}
