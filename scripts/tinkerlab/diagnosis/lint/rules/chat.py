"""Prompts for chat models: the right renderer, and how a reply ended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import Hit, seen, text
from tinkerlab.diagnosis.lint.values import NOTHING, Event

MODEL = re.compile(r"^[A-Za-z][\w.-]*/[A-Za-z][\w.:-]*$")
# Families whose plain name is a chat model; checked against the cookbook's model_info.
CHAT = re.compile(
    r"^(Qwen/Qwen3|openai/gpt-oss|moonshotai/Kimi|deepseek-ai/DeepSeek-[VR]|zai-org/GLM|"
    r"nvidia/.*Nemotron|thinkingmachines(-\w+)?/)|-(Instruct|Chat|it)\b",
    re.IGNORECASE,
)
# A renderer under another name was registered by the script itself.
FAMILY = re.compile(r"role_colon$|(llama|qwen|deepseek|kimi|gpt_oss|nemotron|glm|tml)")
BASE = re.compile(r"-Base\b", re.IGNORECASE)


def is_chat_model(name: str) -> bool:
    return bool(CHAT.search(name)) and not BASE.search(name)


def models(program: Program) -> list[str]:
    """The model names that the script writes out, docstrings aside."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(program.tree)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    tested = {  # model_name.startswith("Qwen/Qwen3"), name == "...": questions, not choices
        id(part)
        for node in ast.walk(program.tree)
        if isinstance(node, ast.Compare)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("startswith", "endswith")
        )
        for part in ast.walk(node)
    }
    names = [
        name
        for node, name in program.strings()
        if id(node) not in docstrings | tested and MODEL.match(name)
    ]
    families = ("Qwen", "Llama", "gpt-oss", "Kimi", "DeepSeek", "GLM", "Nemotron", "Inkling")
    return [name for name in names if any(family.lower() in name.lower() for family in families)]


def encode_for_chat_model(program: Program) -> Iterator[Hit]:
    """Plain text tokenized and given to a chat model without its markers."""
    named = models(program)
    if not named or not all(is_chat_model(name) for name in named):
        return
    for event in program.events:
        if event.what != "call":
            continue
        last = event.method.rsplit(".", 1)[-1]
        if last not in ("from_ints", "EncodedTextChunk"):
            continue
        tokens = event.args.get(0, event.args.get("tokens", NOTHING))
        if tokens.kind == "tokens" and isinstance(tokens.data, ast.Call):
            yield Hit(
                "encode-for-chat-model",
                tokens.data,
                f"{text(tokens.data.func)} gives {named[0]} plain text without its chat markers, "
                "which it was not trained on",
                "renderer.build_generation_prompt(messages) to sample, "
                "renderer.build_supervised_example(messages) to train",
                (seen(program, event.node, "becomes the model's input"),),
            )


def hard_coded_renderer(program: Program) -> Iterator[Hit]:
    """A renderer's name written out, where the model's own should be asked for."""
    for event in program.events:
        if event.what != "call":
            continue
        last = event.method.rsplit(".", 1)[-1]
        if last == "get_renderer":
            name = event.args.get("name", event.args.get(0, NOTHING))
        elif "renderer_name" in event.args and (last[:1].isupper() or last == "apply"):
            name = event.args["renderer_name"]
        elif last == "apply" and isinstance(event.args.get(0, NOTHING).items, dict):
            name = event.args[0].items.get("renderer_name", NOTHING)
        else:
            continue
        if name.kind != "const" or not isinstance(name.data, str):
            continue
        if name.data == "role_colon" and not any(is_chat_model(m) for m in models(program)):
            continue  # plain text with roles: it belongs to no family of models
        if FAMILY.match(name.data):
            yield renderer_hit(program, event, name.data)


def renderer_default(program: Program) -> Iterator[Hit]:
    """A config's field whose default is a renderer: it does not follow another model_name."""
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for part in node.body:
            if (
                isinstance(part, ast.AnnAssign)
                and isinstance(part.target, ast.Name)
                and part.target.id.endswith("renderer_name")
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
                and FAMILY.match(part.value.value)
                and part.value.value != "role_colon"
            ):
                yield Hit(
                    "hard-coded-renderer",
                    part,
                    f"the default {part.value.value!r} stays when model_name is set to another "
                    "family, and every prompt is wrong",
                    f"{part.target.id}: str | None = None, and "
                    "model_info.get_recommended_renderer_name(model_name) where it is None",
                    severity="warning",
                    advice=True,
                )


def renderer_hit(program: Program, event: Event, name: str) -> Hit:
    named = models(program)
    wrong = named if named and all(not_for(name, model) for model in named) else []
    argument = model_argument(event)
    model = ast.unparse(argument) if argument is not None else "model_name"
    what = f"the renderer {name!r} is written out: change the model and every prompt is wrong"
    if wrong:
        what = f"the renderer {name!r} is not one for {wrong[0]}: every prompt is wrong"
    if model == "model_name" and len(set(named)) == 1:
        model = repr(named[0])
    return Hit(
        "hard-coded-renderer",
        event.node,
        what,
        f"model_info.get_recommended_renderer_name({model})",
        severity="problem" if wrong else "warning",
        advice=not wrong,
    )


def model_argument(event: Event) -> ast.expr | None:
    if isinstance(event.node, ast.Call):
        for keyword in event.node.keywords:
            if keyword.arg in ("model_name", "base_model", "model_name_for_tokenizer"):
                return keyword.value
    return None


def not_for(renderer: str, model: str) -> bool:
    """Whether a renderer belongs to another family of models than this one."""
    families = {
        "qwen3_5": r"Qwen3\.[5-9]",
        "qwen3_6": r"Qwen3\.[5-9]",
        "qwen3": r"Qwen3(-|$)",
        "llama3": r"Llama-?3",
        "deepseekv3": r"DeepSeek-V3",
        "kimi_k2": r"Kimi-K2",
        "gpt_oss": r"gpt-oss",
        "nemotron3": r"Nemotron-3",
    }
    for family in sorted(families, key=len, reverse=True):
        if renderer == family or renderer.startswith(f"{family}_"):
            return not re.search(families[family], model, re.IGNORECASE)
    return renderer == "role_colon" and is_chat_model(model)


def parse_truth(program: Program) -> Iterator[Hit]:
    """How a reply ended, taken as true or false: every ending is true."""
    for event in program.events:
        if event.what == "truth":
            subject = event.node
            if isinstance(subject, ast.Call) and subject.args:
                subject = subject.args[0]
            if isinstance(subject, ast.Compare):
                subject = subject.left
            name = text(subject)
            yield Hit(
                "parse-success-truthiness",
                event.node,
                f"{name} is a ParseTermination and always true, MALFORMED too: this test never "
                "fails",
                f"{name}.is_clean (stop sequence or EOS), or {name}.is_stop_sequence to demand "
                "the stop sequence",
            )
