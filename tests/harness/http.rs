//! The little HTTP that the tests need: one request, one answer, then the connection ends.
//!
//! It speaks HTTP/1.0, so that no answer comes in chunks.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The body, as text.
    pub body: String,
}

impl Response {
    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.body)
            .with_context(|| format!("not JSON (status {}): {}", self.status, self.body))
    }

    /// The answer, if its status says success.
    ///
    /// # Errors
    /// When it does not.
    pub fn success(self) -> Result<Self> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        bail!("status {}: {}", self.status, self.body)
    }
}

/// A server on loopback, with a login if it wants one.
#[derive(Debug, Clone)]
pub struct Client {
    port: u16,
    login: Option<String>,
}

impl Client {
    /// Talks to 127.0.0.1 at `port`.
    pub fn new(port: u16) -> Self {
        Self { port, login: None }
    }

    /// The same with a login.
    pub fn with_login(port: u16, user: &str, password: &str) -> Self {
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        Self {
            port,
            login: Some(login),
        }
    }

    /// The port it talks to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends one request and reads the answer.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer in ten seconds.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Response> {
        let exchange = self.exchange(method, path, body);
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        answer
            .with_context(|| format!("no answer in {PATIENCE:?}"))
            .and_then(|answer| answer)
            .with_context(|| format!("{method} http://127.0.0.1:{}{path}", self.port))
    }

    /// `GET path`.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.request("GET", path, None).await
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Response> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let body = body.map(ToString::to_string).unwrap_or_default();
        let login = self
            .login
            .as_ref()
            .map(|login| format!("Authorization: Basic {login}\r\n"))
            .unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n{login}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        parse(&String::from_utf8_lossy(&answer))
    }
}

fn parse(answer: &str) -> Result<Response> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("not an HTTP answer: {answer:?}"))?;
    let status = head
        .split_whitespace()
        .nth(1)
        .context("an HTTP answer without a status")?
        .parse()?;
    Ok(Response {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_taken_apart() {
        let answer = parse("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (404, "{}"));
        answer.success().unwrap_err();
    }

    #[test]
    fn half_an_answer_is_an_error() {
        parse("HTTP/1.1 200 OK\r\nContent-").unwrap_err();
    }
}
