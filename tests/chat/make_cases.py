"""Make the stored cases: what transformers renders from each model's own template.

    python tests/chat/make_cases.py SMOLLM2.gguf QWEN2.5.gguf

Needs ``transformers`` (no torch) and ``gguf``, in an environment of its own. The Gemma file of our tests
is a base model without a template, so its cases come from the template in ``templates.py``. Run it from
the repository root; it writes ``tests/chat/cases/*.json``.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import jinja2
import transformers  # type: ignore[import-not-found]  # not a dependency of ours
from transformers.utils.chat_template_utils import (  # type: ignore[import-not-found]
    render_jinja_template,
)

from tests.chat.conversations import CLOCK, OTHER_ORDERS, PLAIN, TOOLS, WEATHER
from tests.chat.templates import GEMMA

CASES = Path(__file__).parent / "cases"


def _token(reader: Any, kind: str) -> str:
    token = reader.fields[f"tokenizer.ggml.{kind}_token_id"].contents()
    return str(reader.fields["tokenizer.ggml.tokens"].contents(token))


def _render(template: str, messages: list[dict[str, Any]], tools: Any, **rest: Any) -> dict[str, Any]:
    case: dict[str, Any] = {"messages": messages, "tools": tools, **rest}
    try:
        rendered, _ = render_jinja_template([messages], tools=tools, chat_template=template, **rest)
        case["rendered"] = rendered[0]
    except jinja2.TemplateError as error:
        case["refused"] = str(error)
    return case


def _write(name: str, template: str, conversations: dict[str, Any], bos: str, eos: str) -> None:
    cases = {
        f"{title}{'' if prompt else ', no generation prompt'}": _render(
            template,
            messages,
            [WEATHER, CLOCK] if title in TOOLS else None,
            add_generation_prompt=prompt,
            bos_token=bos,
            eos_token=eos,
        )
        for title, messages in conversations.items()
        for prompt in (True, False)
    }
    made = {
        "made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "cases": cases,
    }
    (CASES / f"{name}.json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n")


def main() -> None:
    """Render every conversation with every template."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("smollm2", type=Path)
    parser.add_argument("qwen", type=Path)
    paths = parser.parse_args()
    everything = PLAIN | OTHER_ORDERS | TOOLS
    for name, path, conversations in (
        ("smollm2", paths.smollm2, PLAIN | OTHER_ORDERS),
        ("qwen2.5", paths.qwen, everything),
    ):
        reader = gguf.GGUFReader(path)
        template = str(reader.fields["tokenizer.chat_template"].contents())
        _write(name, template, conversations, _token(reader, "bos"), _token(reader, "eos"))
    _write("gemma", GEMMA, PLAIN | OTHER_ORDERS, "<bos>", "<eos>")


if __name__ == "__main__":
    main()
