//! Every bound of the resource, written once: the schema in the cluster, the rules of
//! [`crate::validate`] and the re-check of a worker's configuration all take them from here.

/// The smallest and the largest value a whole number may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest allowed value.
    pub min: u64,
    /// Largest allowed value.
    pub max: u64,
}

impl Bounds {
    const fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    /// Whether `value` lies within.
    pub const fn contain(self, value: u64) -> bool {
        self.min <= value && value <= self.max
    }
}

/// `transports`: each one is a broker connection per worker.
pub const TRANSPORTS: Bounds = Bounds::new(1, 8);
/// `outboxes`: each one is 64 leases in the database.
pub const OUTBOXES: Bounds = Bounds::new(0, 32);
/// `inboxes`: the same.
pub const INBOXES: Bounds = Bounds::new(0, 32);
/// `outboxes[].headers`: they travel with every message.
pub const HEADERS: u64 = 32;

/// `delivery.batchSize`
pub const BATCH_SIZE: Bounds = Bounds::new(1, 5_000);
/// `delivery.maxInFlight`
pub const MAX_IN_FLIGHT: Bounds = Bounds::new(1, 50_000);
/// `delivery.maxInFlightBytes`: 64 KiB to 1 GiB
pub const MAX_IN_FLIGHT_BYTES: Bounds = Bounds::new(65_536, 1_073_741_824);
/// `delivery.channels`
pub const CHANNELS: Bounds = Bounds::new(1, 16);
/// `delivery.maxIdlePollMilliseconds`: never below the shortest poll a worker makes
pub const MAX_IDLE_POLL_MILLISECONDS: Bounds = Bounds::new(2, 60_000);
/// `delivery.confirmTimeoutSeconds`: always shorter than the longest lease
pub const CONFIRM_TIMEOUT_SECONDS: Bounds = Bounds::new(1, 599);
/// `delivery.maxMessageBytes`: 1 KiB to 128 MiB, above which brokers refuse messages
pub const MAX_MESSAGE_BYTES: Bounds = Bounds::new(1_024, 134_217_728);

/// `inboxes[].types`
pub const TYPES: u64 = 256;
/// `inboxes[].consumer.prefetch`: the protocol's largest is 65535, which would not fit a worker's memory
pub const PREFETCH: Bounds = Bounds::new(1, 10_000);
/// `inboxes[].consumer.maxBatchDelayMilliseconds`: 0 stores what is there
pub const MAX_BATCH_DELAY_MILLISECONDS: Bounds = Bounds::new(0, 1_000);
/// `inboxes[].tenant.segment`: a routing key of 255 bytes has no more than 128 words
pub const SEGMENT: Bounds = Bounds::new(0, 127);
/// `inboxes[].handler.sqlFunction.timeoutSeconds`
pub const HANDLER_TIMEOUT_SECONDS: Bounds = Bounds::new(1, 3_600);
/// `inboxes[].handler.sqlFunction.concurrency`: each one is a session with the database
pub const HANDLER_CONCURRENCY: Bounds = Bounds::new(1, 64);
/// `inboxes[].handler.sqlFunction.batchSize`
pub const HANDLER_BATCH_SIZE: Bounds = Bounds::new(1, 1_000);
/// How much longer than the longest call the grace period is: draining ends five seconds before it does.
pub const DRAIN_SECONDS: u32 = 5;

/// `retry.maxAttempts`: 0 means without end
pub const MAX_ATTEMPTS: Bounds = Bounds::new(0, 10_000);
/// `retry.initialDelaySeconds`: up to a day
pub const INITIAL_DELAY_SECONDS: Bounds = Bounds::new(1, 86_400);
/// `retry.maxDelaySeconds`: up to a week
pub const MAX_DELAY_SECONDS: Bounds = Bounds::new(1, 604_800);

/// `transports[].rabbitmq.heartbeatSeconds`
pub const HEARTBEAT_SECONDS: Bounds = Bounds::new(5, 600);
/// `workers.leaseSeconds`
pub const LEASE_SECONDS: Bounds = Bounds::new(5, 600);
/// `workers.terminationGracePeriodSeconds`: draining ends five seconds before it does
pub const GRACE_SECONDS: Bounds = Bounds::new(10, 3_600);

/// `workers.replicas`: 0 stops delivery and keeps what is written
pub const REPLICAS: Bounds = Bounds::new(0, 64);
/// `workers.podDisruptionBudget.maxUnavailable`
pub const MAX_UNAVAILABLE: Bounds = Bounds::new(1, 64);
/// Entries of lists and maps of a pod: labels, annotations, tolerations and the like.
pub const POD_ENTRIES: u64 = 32;
/// `workers.podTemplate.spec.topologySpreadConstraints[].maxSkew`
pub const MAX_SKEW: Bounds = Bounds::new(1, 64);
/// `workers.podTemplate.spec.tolerations[].tolerationSeconds`
pub const TOLERATION_SECONDS: Bounds = Bounds::new(0, 604_800);

/// `migrations.lockTimeoutSeconds`: applications wait behind a migration that waits for a lock
pub const LOCK_TIMEOUT_SECONDS: Bounds = Bounds::new(1, 600);
/// `migrations.statementTimeoutSeconds`
pub const STATEMENT_TIMEOUT_SECONDS: Bounds = Bounds::new(1, 86_400);
/// `migrations.activeDeadlineSeconds`: of all attempts together
pub const ACTIVE_DEADLINE_SECONDS: Bounds = Bounds::new(30, 86_400);
/// `migrations.backoffLimit`: attempts before a pause
pub const BACKOFF_LIMIT: Bounds = Bounds::new(0, 20);
/// `migrations.ttlSecondsAfterFinished`: up to thirty days
pub const TTL_SECONDS: Bounds = Bounds::new(60, 2_592_000);
/// `migrations.approvedVersion`
pub const APPROVED_VERSION: Bounds = Bounds::new(1, 9_999);

/// `database.connection.port`
pub const PORT: Bounds = Bounds::new(1, 65_535);

/// `retention.deduplication`: an hour to ten years; shorter would forget a message still being repeated
pub const DEDUPLICATION_SECONDS: Bounds = Bounds::new(3_600, 315_360_000);
/// `retention.requests`: an hour to ten years, for the same reason
pub const REQUESTS_SECONDS: Bounds = Bounds::new(3_600, 315_360_000);
/// `retention.dead`: a minute to ten years
pub const DEAD_SECONDS: Bounds = Bounds::new(60, 315_360_000);

/// Bytes of an object's name; what is derived from it must stay below 63.
pub const OBJECT_NAME_BYTES: u64 = 52;
/// Bytes of a DNS label: names of endpoints and transports, and namespaces.
pub const LABEL_BYTES: u64 = 63;
/// Bytes of the schema's name; names of roles are built from it.
pub const SCHEMA_BYTES: u64 = 40;
/// Bytes of a function's name with its schema: two identifiers and a dot.
pub const FUNCTION_BYTES: u64 = 127;
/// Bytes of a host name.
pub const HOST_BYTES: u64 = 253;
/// Bytes of the name of a database.
pub const DATABASE_BYTES: u64 = 63;
/// Bytes of a quantity such as `256Mi`.
pub const QUANTITY_BYTES: u64 = 20;
/// Bytes of the name of a label or annotation, with its prefix.
pub const LABEL_KEY_BYTES: u64 = 317;
/// Bytes of the value of an annotation or a variable.
pub const POD_VALUE_BYTES: u64 = 4_096;
/// Bytes of the name of a Secret, and of a key in one.
pub const SECRET_BYTES: u64 = 253;
/// Bytes of what the broker keeps in a short string: exchange, routing key, virtual host, header name.
pub const SHORT_STRING_BYTES: u64 = 255;
/// Bytes of the value of a fixed header.
pub const HEADER_VALUE_BYTES: u64 = 1_024;
/// Bytes of a retention duration: three numbers of five digits, each with a unit.
pub const DURATION_BYTES: u64 = 18;

/// A DNS label.
pub const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Name of a Secret: DNS labels with dots between them.
pub const SECRET_NAME_PATTERN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Key in a Secret; it becomes a file name, so `.` and whatever starts with `..` are out.
pub const SECRET_KEY_PATTERN: &str = r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$";
/// Name of a PostgreSQL schema that needs no quotes.
pub const SCHEMA_PATTERN: &str = "^[a-z_][a-z0-9_]*$";
/// Schema and name of a function that needs no quotes; PostgreSQL cuts what is longer.
pub const FUNCTION_PATTERN: &str = r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$";
/// A template of routing keys; [`crate::routing_key`] reads it.
pub const ROUTING_KEY_PATTERN: &str = r"^([^{}]|\{(type|stream|tenant|header\.[^{}]+)\})*$";
/// Something besides spaces.
pub const NOT_BLANK_PATTERN: &str = "[^ ]";
/// A host name or an address; nothing that would end the host part of a URL.
pub const HOST_PATTERN: &str = r"^[-._:a-zA-Z0-9]+$";
/// A quantity of processors or memory.
pub const QUANTITY_PATTERN: &str = "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$";
/// Name of an environment variable.
pub const VARIABLE_PATTERN: &str = "^[a-zA-Z_][a-zA-Z0-9_]*$";
/// A retention duration, such as `720h` or `1h30m`.
pub const DURATION_PATTERN: &str = "^([0-9]{1,5}(h|m|s)){1,3}$";
/// Start of the header names that Postroom writes itself.
pub const RESERVED_HEADER_PREFIX: &str = "x-postroom-";
