//! With `serialize=connections` a second client waits in its handshake until the first has gone,
//! and no longer.

use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::session::{Mode, Request};

fn serve() -> Serve {
    Serve::device(["memory", "1M", "serialize=connections"]).option("--filter=noparallel")
}

#[test]
fn the_next_client_does_not_wait_for_requests_of_one_that_has_gone() {
    // What is asked for waits for an hour.
    for filters in
        [&["delay?delay-read=3600"][..], &["cow", "delay?delay-read=3600"], &["rate?rate=1"]]
    {
        let mut serve = serve();
        for filter in filters {
            serve = serve.option(format!("--filter={filter}"));
        }
        let server = serve.start();
        let mut first = server.session(Mode::Structured, "");
        first.send(&Request::new(cmd::READ, 0, 4096));
        first.send(&Request::new(cmd::READ, 4096, 4096));
        drop(first);
        // It is accepted.
        server.session(Mode::Structured, "").flush();
        assert!(server.stop().success(), "{filters:?}");
    }
}
