//! Whom does a TLS connection trust, and how is one made of a TCP connection?
//!
//! The authorities are those of the files the broker attached, and no others: nothing is compiled in and nothing is looked for.
//! Certificate and name are verified in full on every connection; none is resumed, so that no exchange rests on another's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ipc::edge::control::MAX_CERTIFICATE_FILES;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The most bytes of all files of trusted certificates together: as many files as there may be, of 4 MiB, which is all the
/// broker takes of one. A system's own has a quarter of a MiB.
const LARGEST_FILES: usize = MAX_CERTIFICATE_FILES as usize * 4 * 1024 * 1024;

/// How much is read at once.
const PIECE: usize = 64 * 1024;

/// Why there is nobody to trust.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    /// A file could not be read; files are counted from 1.
    #[error("read file {0} of trusted certificates: {1}")]
    Read(usize, #[source] io::Error),
    /// The files are too large.
    #[error("the files of trusted certificates have more than {LARGEST_FILES} bytes")]
    TooLarge,
    /// A file holds no certificate of an authority.
    #[error("file {0} of trusted certificates holds none that can be read")]
    None(usize),
    /// The cryptography does not have what the protocol needs.
    #[error("TLS: {0}")]
    Provider(#[from] rustls::Error),
}

/// What makes TLS connections.
pub(crate) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Trusts the authorities in these PEM files; with no file, nobody.
    ///
    /// A certificate that cannot be read is left out, as are sections of other kinds: bundles of systems have odd ones.
    ///
    /// # Errors
    /// [`TrustError`], also for a file in which no certificate can be read.
    pub(crate) fn trusting(files: Vec<OwnedFd>) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        let mut room = LARGEST_FILES;
        for (number, file) in (1..).zip(files) {
            let text = whole(&File::from(file), number, room)?;
            room = room.saturating_sub(text.len());
            let certificates = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok);
            let (added, _) = roots.add_parsable_certificates(certificates);
            if added == 0 {
                return Err(TrustError::None(number));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    /// Makes a TLS connection with `host`, a name or an address, of a connection with one of its addresses.
    ///
    /// # Errors
    /// Why not, in words of ours.
    pub(crate) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, &'static str> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| "the host is no name that a certificate can be for")?;
        self.0.connect(name, stream).await.map_err(|error| reason(&error))
    }
}

/// The file from its beginning. By position, since a restarted process gets the same open file.
fn whole(file: &File, number: usize, room: usize) -> Result<Vec<u8>, TrustError> {
    let mut text = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let read =
            file.read_at(&mut piece, text.len() as u64).map_err(|error| TrustError::Read(number, error))?;
        if read == 0 {
            return Ok(text);
        }
        text.extend_from_slice(piece.get(..read).unwrap_or_default());
        if text.len() > room {
            return Err(TrustError::TooLarge);
        }
    }
}

/// The failure of a handshake; what the other end wrote is in none of these.
fn reason(error: &io::Error) -> &'static str {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidCertificate(error)) => match error {
            CertificateError::UnknownIssuer => "the certificate is from an authority that is not trusted",
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another name"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            _ => "the certificate is not valid",
        },
        Some(rustls::Error::AlertReceived(_)) => "the upstream refused the TLS handshake",
        Some(rustls::Error::InvalidMessage(_)) => "the upstream does not speak TLS",
        Some(_) => "the TLS handshake failed",
        None => "the connection broke within the TLS handshake",
    }
}
