"""`Image`: a container image in a repository of ECR, and the right to pull it."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.rights import in_this_region


@dataclass(frozen=True)
class Image:
    """An image by repository and tag, or by `sha256:` and its digest.

    CDK's own `ContainerImage.from_ecr_repository` gives the right to log in to ECR without a
    condition; this gives the same rights, one by one.
    """

    repository: ecr.IRepository
    tag: str

    def container(self) -> ecs.ContainerImage:
        """Return the image as ECS wants it."""
        return ecs.ContainerImage.from_registry(
            self.repository.repository_uri_for_tag_or_digest(self.tag)
        )

    def grant_pull(self, scope: Construct, role: iam.IRole) -> None:
        """Let a task's execution role pull the image."""
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="PullImage",
                actions=[
                    "ecr:BatchCheckLayerAvailability",
                    "ecr:BatchGetImage",
                    "ecr:GetDownloadUrlForLayer",
                ],
                resources=[self.repository.repository_arn],
            )
        )
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="LogInToRegistry",  # the one action of ECR that belongs to no repository
                actions=["ecr:GetAuthorizationToken"],
                resources=["*"],
                conditions=in_this_region(scope),
            )
        )
