//! The runtime that the AMQP library runs on: tokio, with streams that are filtered.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures::Stream;
use futures::io::{AsyncRead, AsyncWrite};
use lapin::tcp::{AMQPUriTcpExt as _, AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use super::filter::Filtered;

/// What a stream is below the filter: plain or protected.
type Below = Filtered<AsyncTcpStream<<Tokio as Reactor>::TcpStream>>;

/// Connects with a filter before the library.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
) -> lapin::Result<Connection> {
    let runtime = Runtime::new(Filtering(Tokio::current()));
    let connect = async move |uri: AMQPUri, _: Runtime<Filtering>| {
        let inner = Runtime::tokio_current();
        uri.connect_with_config_async(tls.as_ref(), &inner)
            .await
            .map(|stream| AsyncTcpStream::Plain(Filtered::new(stream)))
            .map_err(lapin::Error::from)
    };
    Connection::connector(uri, runtime, connect, properties).await
}

/// Tokio, save for its streams.
#[derive(Debug, Clone)]
struct Filtering(Tokio);

impl RuntimeKit for Filtering {}

impl Executor for Filtering {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Filtering {
    type TcpStream = Below;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connect = self.0.tcp_connect_addr(address);
        async move { Ok(Filtered::new(AsyncTcpStream::Plain(connect.await?))) }
    }
}
