"""The examples on the documentation page. Each works as it stands."""

from __future__ import annotations

from fastapi.openapi.models import Example

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

PLAIN: Example = {
    "summary": "The most probable text",
    "value": {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 10}},
}
SAMPLED: Example = {
    "summary": "Drawn text, with details",
    "value": {
        "inputs": "Once upon a time",
        "parameters": {
            "max_new_tokens": 20,
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 0.95,
            "seed": 42,
            "stop": ["."],
            "details": True,
            "top_n_tokens": 2,
        },
    },
}
SCHEMA: Example = {
    "summary": "JSON that a schema describes",
    "value": {
        "inputs": "Describe a person as JSON: ",
        "parameters": {"max_new_tokens": 60, "grammar": {"type": "json", "value": PERSON}},
    },
}
REGEX: Example = {
    "summary": "Text that a regular expression matches",
    "value": {
        "inputs": "The founding year of Rome is ",
        "parameters": {
            "max_new_tokens": 10,
            "grammar": {"type": "regex", "value": "[0-9]{1,4} (BC|AD)"},
        },
    },
}

GENERATE_EXAMPLES = {"plain": PLAIN, "sampled": SAMPLED, "schema": SCHEMA, "regex": REGEX}
STREAM_EXAMPLES = GENERATE_EXAMPLES
COMPAT_EXAMPLES: dict[str, Example] = {
    "plain": PLAIN,
    "streamed": {
        "summary": "Streamed",
        "value": {
            "inputs": "The capital of France is",
            "parameters": {"max_new_tokens": 10, "return_full_text": False},
            "stream": True,
        },
    },
}
TOKENIZE_EXAMPLES: dict[str, Example] = {
    "plain": {"summary": "A sentence", "value": {"inputs": "The capital of France is Paris."}}
}
CHAT = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 10}
CHAT_TOKENIZE_EXAMPLES: dict[str, Example] = {
    "plain": {"summary": "A question", "value": CHAT},
}
VERTEX_EXAMPLES: dict[str, Example] = {
    "plain": {
        "summary": "Two prompts",
        "value": {"instances": [PLAIN["value"], SCHEMA["value"]]},
    },
    "chat": {"summary": "A chat", "value": {"instances": [CHAT]}},
}
INVOCATION_EXAMPLES: dict[str, Example] = {
    **COMPAT_EXAMPLES,
    "chat": {"summary": "A chat", "value": CHAT},
    "prompt": {
        "summary": "A prompt in OpenAI's form",
        "value": {"prompt": "The capital of France is", "max_tokens": 10},
    },
}
