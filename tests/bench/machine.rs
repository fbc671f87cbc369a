//! The machine: who used its processors, and what runs on it. Everything comes from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postroom_tests::flavour::Flavour;
use postroom_tests::launch;
use serde::Serialize;
use sqlx::{Connection as _, Row as _};

use crate::bed::{self, Servers};

/// What `/proc` counts in: a hundred to the second, on every Linux that Debian builds.
const TICKS: f64 = 100.0;

/// Processor time that one process and its children have used.
pub(crate) fn time_of(pid: u32) -> Result<Duration> {
    let processes = processes()?;
    Ok(Duration::from_secs_f64(
        ticks_of(pid, &processes) as f64 / TICKS,
    ))
}

/// Processor time of one process alone, without its children.
pub(crate) fn own_time_of(pid: u32) -> Result<Duration> {
    let processes = processes()?;
    let process = processes.get(&pid).context("the process has ended")?;
    Ok(Duration::from_secs_f64(process.own as f64 / TICKS))
}

/// Highest and present memory of a process, in MiB.
pub(crate) fn memory_of(pid: u32) -> Result<(f64, f64)> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let of = |name: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: f64 = kib
            .with_context(|| format!("no {name} in {file}"))?
            .parse()?;
        Ok(kib / 1_024.0)
    };
    Ok((of("VmHWM:")?, of("VmRSS:")?))
}

struct Process {
    parent: u32,
    own: u64,
    /// Own, and of children that have ended.
    ticks: u64,
}

fn processes() -> Result<BTreeMap<u32, Process>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("read /proc")? {
        let name = entry?.file_name();
        let Ok(pid) = name.to_string_lossy().parse::<u32>() else {
            continue;
        };
        // It may have ended meanwhile.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // The name is in parentheses and may hold anything; the state is the first field after it.
        let fields: Vec<&str> = text
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().collect())
            .unwrap_or_default();
        let number = |place: usize| fields.get(place).and_then(|f| f.parse::<u64>().ok());
        let sum = |places: std::ops::Range<usize>| places.filter_map(number).sum();
        let (own, ticks) = (sum(11..13), sum(11..15));
        let parent = number(1).and_then(|parent| u32::try_from(parent).ok());
        if let Some(parent) = parent {
            let process = Process { parent, own, ticks };
            all.insert(pid, process);
        }
    }
    Ok(all)
}

fn ticks_of(root: u32, processes: &BTreeMap<u32, Process>) -> u64 {
    let is_below = |mut pid: u32| {
        // A chain of parents is never longer than this, even if one changes while it is followed.
        for _ in 0..64 {
            if pid == root {
                return true;
            }
            match processes.get(&pid) {
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    processes
        .iter()
        .filter(|(pid, _)| is_below(**pid))
        .map(|(_, process)| process.ticks)
        .sum()
}

/// What was used of the machine up to a moment.
#[derive(Debug)]
pub(crate) struct Used {
    at: Instant,
    all: u64,
    ours: u64,
}

impl Used {
    /// Up to now.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|field| field.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; what guests use is in user already.
        let all = [0, 1, 2, 5, 6, 7]
            .iter()
            .filter_map(|&i| fields.get(i))
            .sum();
        Ok(Self {
            at: Instant::now(),
            all,
            ours: ticks_of(std::process::id(), &processes()?),
        })
    }

    /// Share of the machine that others have used since.
    pub(crate) fn share_of_others_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let ours = self.ours.saturating_sub(before.ours);
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let capacity = seconds * TICKS * processors() as f64;
        (all.saturating_sub(ours) as f64 / capacity.max(1.0)).min(1.0)
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a reader of the results has to know.
#[derive(Debug, Serialize)]
pub(crate) struct About {
    processor: String,
    processors: usize,
    memory_mib: u64,
    kernel: String,
    servers: &'static str,
    postgresql: String,
    postgresql_settings: BTreeMap<String, String>,
    rabbitmq: String,
    worker: String,
    worker_binary: String,
    outbox: &'static str,
}

/// Asks everybody.
pub(crate) async fn about(servers: &Servers) -> Result<About> {
    let mut session = servers.postgres.connect("postgres").await?;
    let version: String = sqlx::query_scalar("show server_version")
        .fetch_one(&mut session)
        .await?;
    let rows =
        sqlx::query("select name, current_setting(name) from pg_settings where name = any($1)")
            .bind(
                [
                    "shared_buffers",
                    "max_wal_size",
                    "checkpoint_timeout",
                    "fsync",
                    "synchronous_commit",
                    "full_page_writes",
                    "wal_level",
                    "autovacuum",
                ]
                .map(str::to_owned)
                .to_vec(),
            )
            .fetch_all(&mut session)
            .await?;
    session.close().await?;
    let mut settings = BTreeMap::new();
    for row in rows {
        settings.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let overview = servers
        .rabbit
        .management()
        .get("/api/overview")
        .await?
        .success()?
        .json()?;
    let text = |name: &str| overview[name].as_str().unwrap_or("unknown").to_owned();
    let binary = launch::binary()?;
    let worker = launch::Launch::new(&["--version"]).succeed().await?;
    Ok(About {
        processor: first("/proc/cpuinfo", "model name"),
        processors: processors(),
        memory_mib: first("/proc/meminfo", "MemTotal")
            .split_whitespace()
            .next()
            .and_then(|kib| kib.parse::<u64>().ok())
            .unwrap_or_default()
            / 1_024,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        servers: Flavour::current().name(),
        postgresql: version,
        postgresql_settings: settings,
        rabbitmq: format!(
            "{} on Erlang {}",
            text("rabbitmq_version"),
            text("erlang_version")
        ),
        worker: worker.trim().to_owned(),
        worker_binary: if binary
            .components()
            .any(|part| part.as_os_str() == "release")
        {
            "release".to_owned()
        } else {
            "NOT a release build: its figures say little".to_owned()
        },
        outbox: bed::OUTBOX_TEXT,
    })
}

fn first(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_once(':'));
    value
        .map_or("unknown", |(_, value)| value.trim())
        .to_owned()
}

impl About {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let settings: Vec<_> = self
            .postgresql_settings
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        format!(
            "Machine     {} x {}, {} MiB, Linux {}\nPostgreSQL  {} ({}): {}\nRabbitMQ    {}, one node, quorum queues, no consumer while something drains\n\
             Worker      {} ({}), one process, default settings\nOutbox      {}\nBare loop   one connection, one channel, persistent and mandatory, confirms, 1000 in flight\n",
            self.processors,
            self.processor,
            self.memory_mib,
            self.kernel,
            self.postgresql,
            self.servers,
            settings.join(", "),
            self.rabbitmq,
            self.worker,
            self.worker_binary,
            self.outbox,
        )
    }
}
