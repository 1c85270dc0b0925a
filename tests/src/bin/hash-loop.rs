//! What the file planes are compared with: one process, a few threads, each of which accepts, reads a head, opens the file,
//! reads all of it, hashes it, answers and closes. No sandbox, no trace, no limits.
//!
//!     hash-loop FOLDER
//!
//! Serves `/resources/files/NAME` on a free loopback port, prints `http://127.0.0.1:PORT`, and ends when its standard input
//! does. For `bench-planes` only: it believes what it is sent.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use sha2::{Digest, Sha256};

/// More than cores: a thread sleeps between accepting a connection and the arrival of its head.
const THREADS_PER_CORE: usize = 4;

/// Heads of this length at most.
const MAX_HEAD: usize = 8192;

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: hash-loop FOLDER"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("http://{}", listener.local_addr()?);
    let cores = std::thread::available_parallelism()?.get();
    for _ in 0..cores * THREADS_PER_CORE {
        let (listener, folder) = (listener.try_clone()?, folder.clone());
        std::thread::spawn(move || {
            let mut body = Vec::new();
            for connection in listener.incoming().flatten() {
                // A client that breaks off is the client's affair.
                let _ = answer(connection, Path::new(&folder), &mut body);
            }
        });
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn answer(mut connection: TcpStream, folder: &Path, body: &mut Vec<u8>) -> io::Result<()> {
    let head = head(&mut connection)?;
    let found = name(&head).and_then(|name| File::open(folder.join(name)).ok());
    let Some(mut file) = found else {
        return connection
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    let size = file.metadata()?.len();
    body.clear();
    body.reserve(size.try_into().map_err(io::Error::other)?);
    file.read_to_end(body)?;
    let mut answer =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\netag: \"sha256:");
    for byte in Sha256::digest(&body) {
        answer.push_str(&format!("{byte:02x}"));
    }
    answer.push_str(&format!("\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len()));
    connection.write_all(answer.as_bytes())?;
    connection.write_all(body)
}

fn head(connection: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut chunk = [0; 2048];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = connection.read(&mut chunk)?;
        if count == 0 || head.len() > MAX_HEAD {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend(chunk.iter().take(count));
    }
    Ok(head)
}

/// The file's name in a request line, if it is one name.
fn name(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let target = std::str::from_utf8(line).ok()?.strip_prefix("GET /resources/files/")?;
    let (name, _) = target.split_once(' ')?;
    (!name.is_empty() && !name.contains('/') && name != "..").then_some(name)
}
