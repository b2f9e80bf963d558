//! Options, one by one, in option mode.

use pyo3::prelude::*;
use wire::constants::option::{
    EXTENDED_HEADERS, LIST, LIST_META_CONTEXT, SET_META_CONTEXT, STARTTLS, STRUCTURED_REPLY,
};

use super::shared::{Asking, CallError, Core};
use super::telling::callback;
use super::{NBD, Object};
use crate::engine::TalkOption::{Contexts, Go, Info, Plain};
use crate::engine::When::Negotiating;
use crate::engine::{EngineError, State, TalkOption};

impl NBD {
    /// Asks, and does not wait.
    fn ask(
        &self,
        py: Python<'_>,
        call: &str,
        option: TalkOption,
        each: Option<Object<'_, '_>>,
        completion: Option<Object<'_, '_>>,
    ) -> PyResult<()> {
        let asking = Asking {
            each: callback(each, "list")?,
            completion: callback(completion, "completion")?,
            ..Asking::default()
        };
        let mut asking = Some(asking);
        let old = self.shared.with(py, call, |core| {
            Negotiating.check(core.engine()?.state())?;
            let old = asking.take().map(|asking| std::mem::replace(&mut core.asking, asking));
            // The completion reports that the connection is dead.
            if let Err(fault) = core.engine()?.opt(option)
                && core.engine()?.state() != State::Dead
            {
                return Err(CallError::Engine(fault));
            }
            Ok(old)
        })?;
        drop(old);
        Ok(())
    }

    /// Asks, and waits for the reply: 0 or an errno, and the number of items.
    fn ask_and_wait(
        &self,
        py: Python<'_>,
        call: &str,
        option: TalkOption,
        each: Option<Object<'_, '_>>,
    ) -> PyResult<(i32, usize)> {
        self.ask(py, call, option, each, None)?;
        self.shared.wait(py, call, |core: &mut Core| {
            Ok(core.asking.done.map(|errno| (errno, core.asking.count)))
        })
    }

    /// The same for an option that a server either grants or not.
    fn ask_whether(&self, py: Python<'_>, call: &str, option: TalkOption) -> PyResult<bool> {
        let (errno, _) = self.ask_and_wait(py, call, option, None)?;
        let dead = self.shared.with(py, call, |core| Ok(core.engine()?.death()))?;
        match dead {
            Some(fault) => Err(CallError::Engine(fault).raise(py, call)),
            None => Ok(errno == 0),
        }
    }

    /// The same for an option that must succeed, by the name `what`: the number of items.
    fn demand_each(
        &self,
        py: Python<'_>,
        call: &str,
        option: TalkOption,
        each: Option<Object<'_, '_>>,
        what: &str,
    ) -> PyResult<usize> {
        let (errno, count) = self.ask_and_wait(py, call, option, each)?;
        if errno == 0 {
            return Ok(count);
        }
        let text = format!("server replied with error to {what} request");
        Err(CallError::Engine(EngineError::number(errno, text)).raise(py, call))
    }

    fn demand(&self, py: Python<'_>, call: &str, option: TalkOption, what: &str) -> PyResult<()> {
        self.demand_each(py, call, option, None, what).map(|_| ())
    }

    fn leave(&self, py: Python<'_>, call: &str) -> PyResult<()> {
        self.know(py, call, Negotiating, |engine| engine.opt_abort())
    }
}

methods! {
    /// Opens the export and ends option mode.
    opt_go() -> () = demand(Go, "opt_go");

    /// Disconnects from the server.
    opt_abort() -> () = leave();

    /// Asks for TLS; returns whether the server agreed.
    opt_starttls() -> bool = ask_whether(Plain(STARTTLS));

    /// Asks for extended headers; returns whether the server agreed.
    opt_extended_headers() -> bool = ask_whether(Plain(EXTENDED_HEADERS));

    /// Asks for structured replies; returns whether the server agreed.
    opt_structured_reply() -> bool = ask_whether(Plain(STRUCTURED_REPLY));

    /// Calls `list(name, description)` for each export; returns how many there are.
    opt_list(list: Object<'_, '_>) -> usize = demand_each(Plain(LIST), Some(list), "list");

    /// Asks about the export without opening it.
    opt_info() -> () = demand(Info, "opt_info");

    /// Calls `context(name)` for each context of the server that `add_meta_context` names, or for
    /// all.
    opt_list_meta_context(context: Object<'_, '_>) -> usize
        = demand_each(Contexts(LIST_META_CONTEXT, None), Some(context), "list meta context");

    /// The same, for the given queries.
    opt_list_meta_context_queries(queries: Vec<String>, context: Object<'_, '_>) -> usize
        = demand_each(
            Contexts(LIST_META_CONTEXT, Some(queries)), Some(context), "list meta context"
        );

    /// Selects the contexts of `add_meta_context`, and calls `context(name)` for each that the
    /// server accepts.
    opt_set_meta_context(context: Object<'_, '_>) -> usize
        = demand_each(Contexts(SET_META_CONTEXT, None), Some(context), "meta context");

    /// The same, for the given queries.
    opt_set_meta_context_queries(queries: Vec<String>, context: Object<'_, '_>) -> usize
        = demand_each(Contexts(SET_META_CONTEXT, Some(queries)), Some(context), "meta context");

    /// As `opt_go`; calls `completion(error)` at its end.
    aio_opt_go(completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Go, None, completion);

    /// As `opt_abort`.
    aio_opt_abort() -> () = leave();

    /// As `opt_starttls`; calls `completion(error)` at its end.
    aio_opt_starttls(completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Plain(STARTTLS), None, completion);

    /// As `opt_extended_headers`; calls `completion(error)` at its end.
    aio_opt_extended_headers(completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Plain(EXTENDED_HEADERS), None, completion);

    /// As `opt_structured_reply`; calls `completion(error)` at its end.
    aio_opt_structured_reply(completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Plain(STRUCTURED_REPLY), None, completion);

    /// As `opt_list`; calls `completion(error)` at its end.
    aio_opt_list(list: Object<'_, '_>, completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Plain(LIST), Some(list), completion);

    /// As `opt_info`; calls `completion(error)` at its end.
    aio_opt_info(completion: Option<Object<'_, '_>> = None) -> ()
        = ask(Info, None, completion);

    /// As `opt_list_meta_context`; calls `completion(error)` at its end.
    aio_opt_list_meta_context(
        context: Object<'_, '_>, completion: Option<Object<'_, '_>> = None
    ) -> () = ask(Contexts(LIST_META_CONTEXT, None), Some(context), completion);

    /// As `opt_list_meta_context_queries`; calls `completion(error)` at its end.
    aio_opt_list_meta_context_queries(
        queries: Vec<String>, context: Object<'_, '_>, completion: Option<Object<'_, '_>> = None
    ) -> () = ask(Contexts(LIST_META_CONTEXT, Some(queries)), Some(context), completion);

    /// As `opt_set_meta_context`; calls `completion(error)` at its end.
    aio_opt_set_meta_context(
        context: Object<'_, '_>, completion: Option<Object<'_, '_>> = None
    ) -> () = ask(Contexts(SET_META_CONTEXT, None), Some(context), completion);

    /// As `opt_set_meta_context_queries`; calls `completion(error)` at its end.
    aio_opt_set_meta_context_queries(
        queries: Vec<String>, context: Object<'_, '_>, completion: Option<Object<'_, '_>> = None
    ) -> () = ask(Contexts(SET_META_CONTEXT, Some(queries)), Some(context), completion);
}
