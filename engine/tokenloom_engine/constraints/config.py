"""The settings of constraints: which library compiles which kind, and how much work is too much."""

from __future__ import annotations

import msgspec

from tokenloom_engine.constraints.spec import ConstraintKind

DEFAULT_BACKEND = "llguidance"


class ConstraintConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Frozen settings; the front validates and the engine compiles by the same ones."""

    backends: dict[ConstraintKind, str] = {}
    """The back end of each kind; of kinds not named here, `llguidance`."""
    max_bytes: int = 1_000_000
    """Size of a spec's text."""
    max_depth: int = 100
    """Nesting of a JSON spec: a schema, a structural tag."""
    timeout_seconds: float = 10.0
    """CPU time that a spec may take to compile."""
    max_items: int = 3_000
    """Work of one step of a parser, in Earley items: what exceeds it fails its own sequence."""
    max_items_in_row: int | None = None
    """The most of them at one byte of the text: what ambiguous grammars make grow. None is 3000
    for JSON schemas, whose alternatives are many and harmless, and 500 for all others."""

    def backend_of(self, kind: ConstraintKind) -> str:
        """The name of the back end that compiles this kind."""
        return self.backends.get(kind, DEFAULT_BACKEND)

    def items_in_row(self, kind: ConstraintKind) -> int:
        """`max_items_in_row` as it holds for this kind."""
        if self.max_items_in_row is not None:
            return self.max_items_in_row
        return 3000 if kind in ("json_schema", "json_object", "structural_tag") else 500
