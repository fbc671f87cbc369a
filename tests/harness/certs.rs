//! A private certificate authority, as the operators of databases and brokers have one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Signs certificates; nobody trusts it unless told to.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
}

/// A server's certificate and its private key, as files in PEM form.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key, readable by its owner only.
    pub key: PathBuf,
    /// The certificate of the authority that signed it.
    pub authority: PathBuf,
}

impl Authority {
    /// A new authority with a key of its own.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn create() -> Result<Self> {
        let folder = run::new_folder("certificates")?;
        openssl(
            &folder,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout ca.key -out ca.crt \
             -subj /CN=tests-authority -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign",
        )?;
        Ok(Self { folder })
    }

    /// The certificate that clients must be given to trust this authority.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// A certificate that is right for the servers of the tests.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn right_host(&self) -> Result<Certificate> {
        self.issue("right", "DNS:localhost,IP:127.0.0.1")
    }

    /// A certificate that was made for another host.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn wrong_host(&self) -> Result<Certificate> {
        self.issue("wrong", "DNS:elsewhere.example,IP:192.0.2.1")
    }

    /// A certificate for the given subject alternative names.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn issue(&self, name: &str, hosts: &str) -> Result<Certificate> {
        let extensions = format!(
            "subjectAltName={hosts}\nbasicConstraints=CA:false\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
        );
        fs::write(self.folder.join(format!("{name}.ext")), extensions)?;
        openssl(
            &self.folder,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
            ),
        )?;
        openssl(
            &self.folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.crt"
            ),
        )?;
        let file = |end: &str| self.folder.join(format!("{name}.{end}"));
        Ok(Certificate {
            certificate: file("crt"),
            key: file("key"),
            authority: self.certificate(),
        })
    }
}

fn openssl(folder: &Path, arguments: &str) -> Result<()> {
    let output = run::command("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .context("run openssl")?;
    if !output.status.success() {
        bail!(
            "openssl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
