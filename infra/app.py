"""The CDK app of both example stacks: `python -m infra.app`, which cdk.json names."""

from __future__ import annotations

import aws_cdk as cdk

from infra.acknowledgements import acknowledge
from infra.stacks import EcsStack, LambdaStack


def build(outdir: str | None = None) -> cdk.App:
    """Return an app with both stacks.

    Args:
        outdir: Where the templates go; by default where the CDK's command says.
    """
    app = cdk.App(outdir=outdir, analytics_reporting=False)
    for kind, name in ((EcsStack, "WorkhorseEcs"), (LambdaStack, "WorkhorseLambda")):
        kind(
            app,
            name,
            # Plain CloudFormation: without the rule that looks for the CDK's own bootstrap stack.
            synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False),
        )
    acknowledge(app)
    return app


if __name__ == "__main__":
    build().synth()
