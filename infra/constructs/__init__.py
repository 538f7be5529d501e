"""CDK constructs for the parts of a deployment; infra/README.md shows them together."""

from infra.constructs.alarms import Alarms
from infra.constructs.database import Database, DatabaseAccess, ExistingDatabase
from infra.constructs.ecs_workers import EcsWorkers
from infra.constructs.errors import ArgumentError
from infra.constructs.functions import WorkhorseFunction
from infra.constructs.images import Image
from infra.constructs.lambda_workers import LambdaWorkers
from infra.constructs.maintenance import Maintenance, OnEcs, OnLambda
from infra.constructs.network import Network
from infra.constructs.queue import WakeupQueue
from infra.constructs.rights import Rights
from infra.constructs.system import System

__all__ = [
    "Alarms",
    "ArgumentError",
    "Database",
    "DatabaseAccess",
    "EcsWorkers",
    "ExistingDatabase",
    "Image",
    "LambdaWorkers",
    "Maintenance",
    "Network",
    "OnEcs",
    "OnLambda",
    "Rights",
    "System",
    "WakeupQueue",
    "WorkhorseFunction",
]
