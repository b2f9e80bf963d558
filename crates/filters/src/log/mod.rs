//! `log`: logs each request of a client, and its result.
//!
//! It shows requests as clients send them, of any range and length; another `log` below shows what
//! reaches the device. It changes nothing, and no thread waits for a file or a script. If the log
//! cannot be written, requests go on.

mod event;
mod sink;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Arrival, Client, Done, Error, Filter, Filtered, Info, Operation, Over, Params, Result, param,
    values,
};

use crate::FilterKind;
use crate::kit::outlet::Outlet;
use event::{Event, Fields, Stage, Value, flag};
use sink::Sink;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "log",
    summary: "logs every request and its result",
    keeps_disk: false,
    params: &[
        param("logfile", "FILE", "where to write: a file, /dev/stderr, a pipe"),
        param("logappend", "true|false", "keep what is in the file (default false)"),
        param("logscript", "SCRIPT", "a shell script to run for each line"),
    ],
    reaches: |params| device::Reach {
        programs: params.get("logscript").map(sink::program).into_iter().collect(),
        ..device::Reach::named(params, &["logfile"], device::Use::Make)
    },
    example: "serve --filter=log memory 1M logfile=/dev/stderr --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let sink = context.common(params, || open_sink(params, context))?;
        Ok(Filtered::device(Log(LoggedClient::none((*sink).clone())), below))
    },
    ..FilterKind::PLAIN
};

fn open_sink(params: &Params, context: &runtime::Context) -> Result<Sink> {
    let append = values::flag(params, "logappend")?.unwrap_or(false);
    let file = params.get("logfile").map(|name| Outlet::open(name, append)).transpose()?;
    let script = params.get("logscript").map(sink::program);
    if file.is_none() && script.is_none() {
        return Err(Error::invalid("`logfile` or `logscript` is missing; for example /dev/stderr"));
    }
    let sink = Sink::new(file, script, context);
    sink.begin_with(Event {
        act: "Ready",
        stage: Stage::Print,
        connection: None,
        id: None,
        // Requests of one connection run in parallel (nbdkit's NBDKIT_THREAD_MODEL_PARALLEL).
        fields: Fields::few([("thread_model", Value::Decimal(3))]),
    });
    let last = sink.clone();
    context.control.on_end(move || last.end());
    Ok(sink)
}

/// A client, until its last reply has been logged.
struct LoggedClient {
    /// 0: the program itself, no client.
    number: u64,
    operations: AtomicU64,
    sink: Sink,
}

impl LoggedClient {
    fn none(sink: Sink) -> Arc<Self> {
        Arc::new(Self { number: 0, operations: AtomicU64::new(0), sink })
    }

    fn begin(client: &Client, below: &Info, sink: Sink) -> Arc<Self> {
        let me = Self { number: client.number, operations: AtomicU64::new(0), sink };
        me.log("Connect", Stage::Print, None, about(client, below), || {});
        Arc::new(me)
    }

    fn log(
        &self,
        act: &'static str,
        stage: Stage,
        id: Option<u64>,
        fields: Fields,
        then: impl FnOnce() + Send + 'static,
    ) {
        self.sink.put(Event { act, stage, connection: Some(self.number), id, fields }, then);
    }
}

impl Drop for LoggedClient {
    fn drop(&mut self) {
        if self.number > 0 {
            let count = Value::Decimal(self.operations.load(Ordering::Relaxed));
            let fields = Fields::few([("transactions", count)]);
            self.log("Disconnect", Stage::Print, None, fields, || {});
        }
    }
}

/// The abilities that are logged when a client connects: 0 for unsupported, 1 for emulated, 2 for
/// native.
fn about(client: &Client, info: &Info) -> Fields {
    let a = info.abilities;
    let blocks = info.advertised.unwrap_or(info.blocks);
    let three = |can: bool, itself: bool| Value::Decimal(u64::from(can) + u64::from(can && itself));
    Fields::many(vec![
        ("export", Value::Quoted(client.export.clone())),
        ("tls", flag(client.tls.is_some())),
        ("size", Value::Hex(info.size)),
        ("minsize", Value::Hex(blocks.minimum.into())),
        ("prefsize", Value::Hex(blocks.preferred.into())),
        ("maxsize", Value::Hex(blocks.maximum.into())),
        ("write", flag(a.write)),
        ("flush", flag(a.flush)),
        ("rotational", flag(a.rotational)),
        ("trim", flag(a.write && a.trim)),
        ("zero", three(a.write && !a.hides_zero, a.zero)),
        ("fua", three(a.write && !a.hides_fua && (a.fua || a.flush), a.fua)),
        ("extents", flag(a.extents)),
        ("cache", three(a.prefetch, true)),
        ("fast_zero", flag(a.write && !a.hides_zero && a.fast_zero)),
    ])
}

struct Log(Arc<LoggedClient>);

impl Filter for Log {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        // `asked` knows all operations: it has no wildcard either.
        let (act, fields) = event::asked(&operation);
        let id = Some(self.0.operations.fetch_add(1, Ordering::Relaxed) + 1);
        let (below, connection) = (over.below.clone(), self.0.clone());
        self.0.log(act, Stage::Enter, id, fields, move || {
            let ended: Done = Box::new(move |result| {
                let fields = event::answered(&result);
                connection.log(act, Stage::Leave, id, fields, move || done(result));
            });
            below.submit(operation, ended);
        });
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let sink = self.0.sink.clone();
        let own = LoggedClient::begin(arrival.client, arrival.below.info(), sink);
        Some(Arc::new(Self(own)))
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;
    use device::{Abilities, BlockSizes, ZeroFlags};
    use runtime::{Context, WorkPool};

    use super::*;
    use crate::kit::tested::{self, put_in, simple};
    use device::Blocking as _;
    use device::Edge;

    fn file(name: &str) -> String {
        let name = format!("diskferry-log-{name}-{}", std::process::id());
        std::env::temp_dir().join(name).display().to_string()
    }

    fn logged(below: Model, words: &[String]) -> (Edge, Context) {
        let context = Context::new(WorkPool::new(2));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        (put_in(&context, "log", simple(Arc::new(below)), &words).unwrap(), context)
    }

    fn for_client(disk: &Edge, export: &str) -> Edge {
        let client = Client { export: export.into(), ..tested::client(7) };
        disk.beside(tested::connect(disk, &client).unwrap().unwrap())
    }

    /// The lines of a log without the times.
    fn lines(path: &str) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let line = |line: &str| {
            let (time, rest) = line.split_at(27);
            assert!(time.ends_with(' ') && time.as_bytes()[19] == b'.', "{line}");
            rest.to_owned()
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn lines_are_those_of_nbdkit() {
        let path = file("lines");
        // The log shows what clients ask, not what this device needs.
        let abilities = Abilities { fua: false, ..Model::new(0).info().abilities };
        let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
        let below = Model::with(1 << 20, abilities, blocks);
        let (disk, context) = logged(below, &[format!("logfile={path}")]);
        let edge = for_client(&disk, "a\"b");
        edge.read(&mut [0; 100], 10).unwrap();
        edge.write(&[1; 4096], 4096, true).unwrap();
        let fast = ZeroFlags { fast_only: true, may_unmap: true, ..ZeroFlags::default() };
        edge.zero(0, 65536, fast).unwrap();
        edge.trim(8192, 4096, false).unwrap();
        edge.flush().unwrap();
        edge.prefetch(0, 4096).unwrap();
        let mut out = Vec::new();
        edge.resolve(0, 65536, 1, &mut out).unwrap();
        edge.write(&[1; 4096], 0, false).unwrap();
        edge.resolve(0, 65536, 10, &mut out).unwrap();
        assert!(edge.zero(1, 100, fast).is_err());
        drop(edge);
        context.control.end();
        let connect = "connection=7 Connect export=\"a\\\"b\" tls=0 size=0x100000 minsize=0x200 \
                       prefsize=0x1000 maxsize=0x2000 write=1 flush=1 rotational=0 trim=1 zero=2 \
                       fua=1 extents=1 cache=0 fast_zero=1";
        let expected = [
            "Ready thread_model=3",
            connect,
            "connection=7 Read id=1 offset=0xa count=0x64 ...",
            "connection=7 ...Read id=1 return=0",
            "connection=7 Write id=2 offset=0x1000 count=0x1000 fua=1 ...",
            "connection=7 ...Write id=2 return=0",
            "connection=7 Zero id=3 offset=0x0 count=0x10000 trim=1 fua=0 fast=1 ...",
            "connection=7 ...Zero id=3 return=0",
            "connection=7 Trim id=4 offset=0x2000 count=0x1000 fua=0 ...",
            "connection=7 ...Trim id=4 return=0",
            "connection=7 Flush id=5 ...",
            "connection=7 ...Flush id=5 return=0",
            "connection=7 Cache id=6 offset=0x0 count=0x1000 ...",
            "connection=7 ...Cache id=6 return=0",
            "connection=7 Extents id=7 offset=0x0 count=0x10000 req_one=1 ...",
            "connection=7 ...Extents id=7 extents=(0x0 0x10000 \"hole,zero\") return=0",
            "connection=7 Write id=8 offset=0x0 count=0x1000 fua=0 ...",
            "connection=7 ...Write id=8 return=0",
            "connection=7 Extents id=9 offset=0x0 count=0x10000 req_one=0 ...",
            "connection=7 ...Extents id=9 extents=(0x0 0x1000 \"\" 0x1000 0xf000 \"hole,zero\") \
             return=0",
            "connection=7 Zero id=10 offset=0x1 count=0x64 trim=1 fua=0 fast=1 ...",
            "connection=7 ...Zero id=10 return=-1 error=ENOTSUP",
            "connection=7 Disconnect transactions=10",
        ];
        assert_eq!(lines(&path), expected);
    }

    #[test]
    fn a_log_is_emptied_at_the_start_unless_it_is_to_be_kept() {
        let path = file("append");
        for (append, left) in [("true", 1), ("true", 2), ("false", 1)] {
            let words = [format!("logfile={path}"), format!("logappend={append}")];
            let (disk, context) = logged(Model::new(512), &words);
            drop(disk);
            context.control.end();
            assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), left);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_script_gets_each_event_in_variables_before_what_follows() {
        let path = file("script");
        let script = "echo \"$act $type ${connection-none} ${id-none} ${offset-none} \
                      ${count-none} ${fua-none} ${return-none} ${error-none} ${export-none}\" >>";
        let (disk, context) = logged(Model::new(1 << 20), &[format!("logscript={script} {path}")]);
        let edge = for_client(&disk, "$(touch bad)'\"");
        edge.write(&[1; 16], 32, false).unwrap();
        let so_far = std::fs::read_to_string(&path).unwrap();
        assert!(so_far.ends_with("Write LEAVE 7 1 none none none 0 none none\n"), "{so_far}");
        drop(edge);
        context.control.end();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let expected = [
            "Ready PRINT none none none none none none none none",
            "Connect PRINT 7 none none none 2 none none $(touch bad)'\"",
            "Write ENTER 7 1 0x20 0x10 0 none none none",
            "Write LEAVE 7 1 none none none 0 none none",
            "Disconnect PRINT 7 none none none none none none none",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
