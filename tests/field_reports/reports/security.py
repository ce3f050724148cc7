"""Model files that do harm, and who may ask."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-45": report(
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
    "FR-46": report(
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
    "FR-47": report(
        "A template from a model file runs code",
        "sgl-project/sglang#23660 sgl-project/sglang#25009 guidance-ai/guidance#1475",
        """
        chat/test_sandbox.py::test_nothing_escapes
        chat/test_sandbox.py::test_hostile_work_is_stopped
        chat/test_sandbox.py::test_exactly_one_place_compiles_templates
        field_reports/test_fr_h_security.py::test_a_template_that_attacks_is_a_400_on_every_route
        """,
    ),
    "FR-48": report(
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
}
