"""`Database`: PostgreSQL by Aurora or RDS, and how processes reach it without a password.

No process is given a password. It is given a URL without one and the ARN of the secret, reads the
secret itself when it opens its first connection, and again when the database refuses it: so a
rotation needs no restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_rds as rds
from constructs import Construct

from infra.constructs.errors import ArgumentError, check_range, path_of
from infra.constructs.network import Network

PORT: Final = 5432
ADMINISTRATOR: Final = "workhorse"


class DatabaseAccess(Protocol):
    """What other constructs want of a database."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a process that uses it, without a secret."""

    def grant_connect(self, role: iam.IRole) -> None:
        """Let a role read the credentials."""

    def allow_from(self, peer: ec2.IConnectable) -> None:
        """Let a process reach the database over the network."""


@dataclass(frozen=True, kw_only=True)
class ExistingDatabase:
    """A database that stands already.

    Args:
        url: `postgresql://host:5432/database?sslmode=...`, without user and password.
        secret_arn: A secret of Secrets Manager: JSON with `username` and `password`.
        secret_key_arn: The key that it is encrypted with, where it is not AWS's own.
        security_group: What to let the processes into; none is changed by default.
        pooler: Whether the URL is that of RDS Proxy, or of another pooler in transaction mode.
    """

    url: str
    secret_arn: str
    secret_key_arn: str | None = None
    security_group: ec2.ISecurityGroup | None = None
    pooler: bool = False

    def __post_init__(self) -> None:
        before_host = self.url.partition("://")[2].partition("/")[0]
        if "@" in before_host:
            raise ArgumentError(
                "ExistingDatabase",
                "url",
                "holds a user or password; variables can be read by whoever may describe the "
                "task or the function: leave them to the secret",
            )

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a process that uses it, without a secret."""
        return _variables(self.url, self.secret_arn, pooler=self.pooler)

    def grant_connect(self, role: iam.IRole) -> None:
        """Let a role read the credentials."""
        _grant_secret(role, self.secret_arn, self.secret_key_arn)

    def allow_from(self, peer: ec2.IConnectable) -> None:
        """Let a process reach the database over the network."""
        if self.security_group is not None:
            self.security_group.connections.allow_from(
                peer, ec2.Port.tcp(PORT), "Processes of Workhorse"
            )


class Database(Construct):
    """A PostgreSQL of its own: encrypted, without a public address, with backups.

    RDS makes the password, keeps it in Secrets Manager, and rotates it each week.

    Args:
        network: Where it is; the subnets need no way to the internet.
        kind: `aurora` (Serverless v2, grows and shrinks by itself) or `instance` (one RDS
            instance of a fixed size, with a standby where `multi_az`).
        capacity: Aurora: the least and the most capacity units.
        instance_type: RDS: the size.
        multi_az: A reader (Aurora) or standby (RDS) in another zone, for fail-over.
        proxy: Whether processes go through RDS Proxy. It queues connections beyond what the
            database takes, and hides a fail-over; it does not save any, since it pins a session
            whose transactions say how long they wait, which Workhorse's do. Bounding how many
            invocations there are (`max_concurrency`) does the same for less.
        name: The database's name.
        encryption_key: A key of yours for storage; AWS's own by default.
        secret_key: The same for the secret.
        ca_bundle: The path of RDS's certificates in the image or the function's package; with it,
            the server's name and certificate are verified. Without it, the connection is
            encrypted, and not verified. (RDS Proxy's certificate is a public one: `system`.)
        backup_days: How far back it can be restored.
        deletion_protection: Whether deleting it has to be allowed first. Its last state is kept
            as a snapshot either way.

    Raises:
        ArgumentError: A number or a name cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        network: Network,
        kind: Literal["aurora", "instance"] = "aurora",
        capacity: tuple[float, float] = (0.5, 8),
        instance_type: str = "m7g.large",
        multi_az: bool = True,
        proxy: bool = False,
        name: str = "workhorse",
        encryption_key: kms.IKey | None = None,
        secret_key: kms.IKey | None = None,
        ca_bundle: str | None = None,
        backup_days: int = 7,
        deletion_protection: bool = True,
    ) -> None:
        here = path_of(scope, construct_id)
        if kind not in ("aurora", "instance"):
            raise ArgumentError(here, "kind", f"is {kind!r}; give 'aurora' or 'instance'")
        least, most = capacity
        # At 0 Aurora pauses, and workers, whose nets look each 30 s, would wake it or find it gone.
        check_range(here, "capacity", least, 0.5, 256, "Aurora Serverless v2 allows no other")
        check_range(here, "capacity", most, max(least, 1), 256, "the most is below the least")
        check_range(here, "backup_days", backup_days, 1, 35, "RDS keeps backups no longer")
        super().__init__(scope, construct_id)
        self._secret_key = secret_key

        group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=network.vpc,
            description="Database of Workhorse",
            allow_all_outbound=False,
        )
        common: dict[str, Any] = {
            "vpc": network.vpc,
            "vpc_subnets": network.selection,
            "security_groups": [group],
            "port": PORT,
            "storage_encrypted": True,
            "storage_encryption_key": encryption_key,
            "credentials": rds.Credentials.from_username(ADMINISTRATOR, encryption_key=secret_key),
            "manage_master_user_password": True,
            "deletion_protection": deletion_protection,
            "removal_policy": cdk.RemovalPolicy.SNAPSHOT,
            "cloudwatch_logs_exports": ["postgresql"],
            "iam_authentication": True,  # for people: `aws rds generate-db-auth-token`
        }
        resource: rds.DatabaseCluster | rds.DatabaseInstance
        if kind == "aurora":
            resource = rds.DatabaseCluster(
                self,
                "Cluster",
                engine=rds.DatabaseClusterEngine.aurora_postgres(
                    version=rds.AuroraPostgresEngineVersion.VER_17_6
                ),
                default_database_name=name,
                serverless_v2_min_capacity=least,
                serverless_v2_max_capacity=most,
                writer=rds.ClusterInstance.serverless_v2("Writer", publicly_accessible=False),
                readers=[
                    rds.ClusterInstance.serverless_v2(
                        "Reader", scale_with_writer=True, publicly_accessible=False
                    )
                ]
                if multi_az
                else [],
                backup=rds.BackupProps(retention=cdk.Duration.days(backup_days)),
                **common,
            )
            address = resource.cluster_endpoint.hostname
            target = rds.ProxyTarget.from_cluster(resource)
        else:
            resource = rds.DatabaseInstance(
                self,
                "Instance",
                engine=rds.DatabaseInstanceEngine.postgres(
                    version=rds.PostgresEngineVersion.VER_17_6
                ),
                database_name=name,
                instance_type=ec2.InstanceType(instance_type),
                multi_az=multi_az,
                allocated_storage=50,
                max_allocated_storage=500,
                storage_type=rds.StorageType.GP3,
                publicly_accessible=False,
                auto_minor_version_upgrade=True,
                backup_retention=cdk.Duration.days(backup_days),
                **common,
            )
            address = resource.db_instance_endpoint_address
            target = rds.ProxyTarget.from_instance(resource)
        secret = resource.secret
        assert secret is not None  # noqa: S101 - for the type checker: RDS manages it
        self.resource: Final = resource
        self.secret: Final = secret
        self.connections: ec2.Connections = resource.connections
        self.proxy: rds.DatabaseProxy | None = None
        if proxy:
            self.proxy = rds.DatabaseProxy(
                self,
                "Proxy",
                proxy_target=target,
                secrets=[secret],
                vpc=network.vpc,
                vpc_subnets=network.selection,
                require_tls=True,
            )
            address = self.proxy.endpoint
            self.connections = self.proxy.connections

        verified = f"verify-full&sslrootcert={ca_bundle}" if ca_bundle else "require"
        self.url: Final = f"postgresql://{address}:{PORT}/{name}?sslmode={verified}"
        """Without user and password."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a process that uses it, without a secret."""
        return _variables(self.url, self.secret.secret_arn, pooler=self.proxy is not None)

    def grant_connect(self, role: iam.IRole) -> None:
        """Let a role read the credentials."""
        key = self._secret_key.key_arn if self._secret_key else None
        _grant_secret(role, self.secret.secret_arn, key)

    def allow_from(self, peer: ec2.IConnectable) -> None:
        """Let a process reach the database, or its proxy, over the network."""
        self.connections.allow_from(peer, ec2.Port.tcp(PORT), "Processes of Workhorse")


def _variables(url: str, secret_arn: str, *, pooler: bool) -> dict[str, str]:
    return {
        "WORKHORSE_DATABASE_URL": url,
        "WORKHORSE_DATABASE_SECRET": secret_arn,
        **({"WORKHORSE_POOLER": "true"} if pooler else {}),
    }


def _grant_secret(role: iam.IRole, secret_arn: str, key_arn: str | None) -> None:
    role.add_to_principal_policy(
        iam.PolicyStatement(
            sid="ReadDatabaseSecret",
            actions=["secretsmanager:GetSecretValue"],
            resources=[secret_arn],
        )
    )
    if key_arn is not None:
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="DecryptDatabaseSecret", actions=["kms:Decrypt"], resources=[key_arn]
            )
        )
