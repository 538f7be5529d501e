"""`make templates`: write both stacks as plain CloudFormation, for people without the CDK."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from infra.app import build

FOLDER: Final = Path(__file__).parent / "templates"
FILES: Final = {"WorkhorseEcs": "ecs.json", "WorkhorseLambda": "lambda.json"}


def text_of(template: dict[str, Any]) -> str:
    """Return a template as the file holds it."""
    return json.dumps(template, indent=1) + "\n"


def main() -> None:
    """Write the templates."""
    with tempfile.TemporaryDirectory() as folder:
        assembly = build(folder).synth()
        for stack, file in FILES.items():
            template = assembly.get_stack_by_name(stack).template
            (FOLDER / file).write_text(text_of(template))
            print(f"infra/templates/{file}: {len(template['Resources'])} resources")


if __name__ == "__main__":
    main()
