"""Two example stacks: workers on ECS, and workers on Lambda."""

from infra.stacks.ecs import EcsStack
from infra.stacks.lambda_ import LambdaStack

__all__ = ["EcsStack", "LambdaStack"]
