//! A stretch of network between two processes that a test can break in the ways networks break.
//!
//! Invariant: what was accepted is either passed on in order or its connection ends; a stream is never cut and then
//! continued. So a black hole that heals behaves like one that TCP has bridged by sending again.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::background::{Background, Stop};
use crate::ports;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They go through.
    Pass,
    /// They wait, and so does the end of the stream. The sender notices nothing until its buffers are full.
    Stall,
    /// They vanish: a reply that never comes. End the connections afterwards with [`TcpProxy::reset_all`].
    Swallow,
    /// They go through after this time.
    Delay(Duration),
}

/// What happens to whom wants to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    Closed,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    to_server: Flow,
    to_client: Flow,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    /// What the test wants.
    door: watch::Sender<Door>,
    /// What is so.
    listening: watch::Sender<Door>,
    reset: watch::Sender<u64>,
    accepted: AtomicU64,
}

/// A proxy on a port of 127.0.0.1 in front of another one.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    shared: Arc<Shared>,
    _background: Background,
}

impl TcpProxy {
    /// Starts to listen; everything passes at first.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub async fn start(server_port: u16) -> Result<Self> {
        let port = ports::free()?;
        let shared = Arc::new(Shared {
            rules: watch::channel(Rules {
                to_server: Flow::Pass,
                to_client: Flow::Pass,
            })
            .0,
            door: watch::channel(Door::Open).0,
            listening: watch::channel(Door::Closed).0,
            reset: watch::channel(0).0,
            accepted: AtomicU64::new(0),
        });
        let ours = Arc::clone(&shared);
        let background =
            Background::start("proxy", move |stop| serve(port, server_port, ours, stop))?;
        let proxy = Self {
            port,
            shared,
            _background: background,
        };
        proxy.wait(Door::Open).await?;
        Ok(proxy)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets both directions, for connections that are there and those to come.
    pub fn set(&self, to_server: Flow, to_client: Flow) {
        self.shared.rules.send_replace(Rules {
            to_server,
            to_client,
        });
    }

    /// Everything goes through again.
    pub fn pass(&self) {
        self.set(Flow::Pass, Flow::Pass);
    }

    /// Nothing goes through any more in either direction; connections stay open.
    pub fn black_hole(&self) {
        self.set(Flow::Stall, Flow::Stall);
    }

    /// Every byte takes this much longer, in both directions.
    pub fn delay(&self, time: Duration) {
        self.set(Flow::Delay(time), Flow::Delay(time));
    }

    /// Ends all connections by a reset, as after the crash of a machine.
    pub fn reset_all(&self) {
        self.shared.reset.send_modify(|number| *number += 1);
    }

    /// Refuses new connections; those that are there stay.
    ///
    /// # Errors
    /// When the proxy has ended.
    pub async fn refuse(&self) -> Result<()> {
        self.shared.door.send_replace(Door::Closed);
        self.wait(Door::Closed).await
    }

    /// Takes new connections again.
    ///
    /// # Errors
    /// When the port cannot be had again.
    pub async fn accept(&self) -> Result<()> {
        self.shared.door.send_replace(Door::Open);
        self.wait(Door::Open).await
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    async fn wait(&self, wanted: Door) -> Result<()> {
        let mut listening = self.shared.listening.subscribe();
        let waited = tokio::time::timeout(
            Duration::from_secs(10),
            listening.wait_for(|door| *door == wanted),
        )
        .await;
        waited
            .with_context(|| format!("the proxy at port {} is not {wanted:?}", self.port))?
            .context("the proxy has ended")
            .map(drop)
    }
}

async fn serve(port: u16, server_port: u16, shared: Arc<Shared>, stop: Stop) {
    let mut door = shared.door.subscribe();
    while !stop.is_requested() {
        if door.wait_for(|door| *door == Door::Open).await.is_err() {
            return;
        }
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => listener,
            Err(error) => {
                eprintln!("proxy: port {port}: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        shared.listening.send_replace(Door::Open);
        tokio::select! {
            () = accept(&listener, server_port, &shared) => {}
            _ = door.wait_for(|door| *door == Door::Closed) => {}
        }
        drop(listener);
        shared.listening.send_replace(Door::Closed);
    }
}

async fn accept(listener: &TcpListener, server_port: u16, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(carry(client, server_port, Arc::clone(shared)));
    }
}

/// One connection, until both directions have ended or a reset is asked for.
async fn carry(mut client: TcpStream, server_port: u16, shared: Arc<Shared>) {
    let mut reset = shared.reset.subscribe();
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)).await else {
        client.set_zero_linger().ok();
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
    }
    let broken = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let both = async {
            tokio::try_join!(
                carry_one_way(from_client, to_server, shared.rules.subscribe(), |rules| {
                    rules.to_server
                }),
                carry_one_way(from_server, to_client, shared.rules.subscribe(), |rules| {
                    rules.to_client
                }),
            )
        };
        tokio::select! {
            ended = both => ended.is_err(),
            _ = reset.changed() => true,
        }
    };
    if broken {
        client.set_zero_linger().ok();
        server.set_zero_linger().ok();
    }
}

type Rule = fn(&Rules) -> Flow;

async fn carry_one_way(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    rules: watch::Receiver<Rules>,
    rule: Rule,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(64);
    tokio::try_join!(read(from, sender, rules, rule), write(to, receiver)).map(drop)
}

/// Reads chunks and says when each is due at the other end. An empty chunk is the end of the stream.
async fn read(
    mut from: ReadHalf<'_>,
    sender: mpsc::Sender<(Instant, Vec<u8>)>,
    mut rules: watch::Receiver<Rules>,
    rule: Rule,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let size = from.read(&mut buffer).await?;
        // The rule that counts is the one at the time when the bytes would go on.
        let flow = match rules.wait_for(|rules| rule(rules) != Flow::Stall).await {
            Ok(rules) => rule(&rules),
            Err(_) => return Ok(()),
        };
        let due = match flow {
            Flow::Delay(time) => Instant::now() + time,
            Flow::Pass | Flow::Stall => Instant::now(),
            Flow::Swallow if size == 0 => return Ok(()),
            Flow::Swallow => continue,
        };
        if sender.send((due, buffer[..size].to_vec())).await.is_err() || size == 0 {
            return Ok(());
        }
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut receiver: mpsc::Receiver<(Instant, Vec<u8>)>,
) -> io::Result<()> {
    while let Some((due, chunk)) = receiver.recv().await {
        tokio::time::sleep_until(due).await;
        if chunk.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&chunk).await?;
    }
    Ok(())
}
