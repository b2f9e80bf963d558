//! A scripted HTTP server in this process, for tests: what it answers is up to each test, down to
//! the last byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use runtime::{Mutex, spread_bits};

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// First byte and the one after the last.
    pub(super) range: Option<(usize, usize)>,
    /// Which request it is, of all and of its connection, from 0 on.
    pub(super) number: usize,
    pub(super) nth: usize,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// What is answered: bytes and pauses. The connection is closed after `Close` only.
#[derive(Clone)]
pub(super) enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    Run(Arc<dyn Fn() + Send + Sync>),
    /// Waits until the peer has gone.
    Hang,
    Close,
}

pub(super) type Reply = Vec<Step>;

/// See the module.
pub(super) struct Site {
    pub(super) address: String,
    pub(super) asked: Arc<Mutex<Vec<Asked>>>,
    pub(super) connections: Arc<Mutex<usize>>,
}

impl Site {
    pub(super) fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let connections: Arc<Mutex<usize>> = Arc::default();
        let (all, count, answer) = (asked.clone(), connections.clone(), Arc::new(answer));
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *count.lock() += 1;
                let (all, answer) = (all.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &all, &*answer));
            }
        });
        Self { address, asked, connections }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// How many bytes were asked for, in ranges.
    pub(super) fn bytes_asked(&self) -> usize {
        self.asked().iter().filter_map(|asked| asked.range).map(|(start, end)| end - start).sum()
    }

    pub(super) fn connections(&self) -> usize {
        *self.connections.lock()
    }
}

fn serve(stream: TcpStream, all: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    for nth in 0.. {
        let Some(mut asked) = read(&mut reader) else { return };
        let mut list = all.lock();
        (asked.number, asked.nth) = (list.len(), nth);
        list.push(asked.clone());
        drop(list);
        for step in answer(&asked) {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Step::Wait(time) => std::thread::sleep(time),
                Step::Run(what) => what(),
                Step::Hang => {
                    let _ = reader.read(&mut [0; 1]);
                    return;
                }
                Step::Close => return,
            }
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let mut asked = Asked {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        ..Asked::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        asked.headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let long = asked.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    asked.body.resize(long, 0);
    reader.read_exact(&mut asked.body).ok()?;
    let range = asked.header("range").and_then(|range| range.strip_prefix("bytes="));
    asked.range = range.and_then(|range| {
        let (first, last) = range.split_once('-')?;
        Some((first.parse().ok()?, last.parse::<usize>().ok()? + 1))
    });
    Some(asked)
}

/// An answer with a head and a body, as they are given.
pub(super) fn plain(status: &str, headers: &[&str], body: &[u8]) -> Reply {
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for header in headers {
        bytes.extend_from_slice(format!("{header}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    vec![Step::Send(bytes)]
}

/// An answer without a body that matters.
pub(super) fn status(status: &str, headers: &[&str]) -> Reply {
    plain(status, &[headers, &["Content-Length: 3"]].concat(), b"no\n")
}

/// What a good server answers.
pub(super) fn good(asked: &Asked, content: &[u8], headers: &[&str]) -> Reply {
    let size = content.len();
    let Some((start, end)) = asked.range else {
        let length = format!("Content-Length: {size}");
        let body = if asked.method == "HEAD" { &[][..] } else { content };
        return plain("200 OK", &[&[length.as_str()], headers].concat(), body);
    };
    if start >= size {
        return status("416 Range Not Satisfiable", &[&format!("Content-Range: bytes */{size}")]);
    }
    let end = end.min(size);
    let range = format!("Content-Range: bytes {start}-{}/{size}", end - 1);
    let length = format!("Content-Length: {}", end - start);
    plain("206 Partial Content", &[&[&range[..], &length], headers].concat(), &content[start..end])
}

/// What a server answers that has no ranges.
pub(super) fn whole(asked: &Asked, content: &[u8], headers: &[&str]) -> Reply {
    good(&Asked { range: None, ..asked.clone() }, content, headers)
}

/// The first `len` bytes of the body, and what comes then.
pub(super) fn cut(mut reply: Reply, len: usize, then: Step) -> Reply {
    if let Some(Step::Send(bytes)) = reply.first_mut() {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        bytes.truncate(head + len);
    }
    reply.push(then);
    reply
}

/// A part of `content` in an answer that has a head and a frame of its own: the range, and its
/// bytes.
pub(super) fn part<'a>(asked: &Asked, content: &'a [u8]) -> (String, &'a [u8]) {
    let (start, end) = asked.range.unwrap();
    let end = end.min(content.len());
    let range = format!("Content-Range: bytes {start}-{}/{}", end - 1, content.len());
    (range, &content[start..end])
}

/// Bytes that differ everywhere.
pub(super) fn content(size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 8);
    (1..=size.div_ceil(8) as u64).for_each(|i| bytes.extend(spread_bits(i).to_le_bytes()));
    bytes.truncate(size);
    bytes
}
