//! Options, one by one, in option mode.

use pyo3::prelude::*;

use super::NBD;
use crate::engine::{EngineError, State, TalkOption};
use crate::nbd::shared::{Asking, CallError, Core};
use crate::nbd::telling::callback;

impl NBD {
    /// Asks, and does not wait.
    fn ask(
        &self,
        py: Python<'_>,
        call: &str,
        option: TalkOption,
        each: Option<&Bound<'_, PyAny>>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let asking = Asking {
            each: callback(each, "list")?,
            completion: callback(completion, "completion")?,
            ..Asking::default()
        };
        let mut asking = Some(asking);
        let old = self.shared.with(py, call, |core| {
            crate::engine::When::Negotiating.check(core.engine()?.state())?;
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
        each: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(i32, usize)> {
        self.ask(py, call, option, each, None)?;
        self.shared.wait(py, call, |core: &mut Core| {
            core.asking.done.map(|errno| Ok((errno, core.asking.count)))
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

    fn demand(
        &self,
        py: Python<'_>,
        call: &str,
        option: TalkOption,
        each: Option<&Bound<'_, PyAny>>,
        what: &str,
    ) -> PyResult<usize> {
        let (errno, count) = self.ask_and_wait(py, call, option, each)?;
        if errno == 0 {
            return Ok(count);
        }
        let text = format!("server replied with error to {what} request");
        Err(CallError::Engine(EngineError::number(errno, text)).raise(py, call))
    }
}

#[pymethods]
impl NBD {
    /// Opens the export and ends option mode.
    fn opt_go(&self, py: Python<'_>) -> PyResult<()> {
        self.demand(py, "opt_go", TalkOption::Go, None, "opt_go").map(|_| ())
    }

    /// Disconnects from the server.
    fn opt_abort(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, "opt_abort", |core| Ok(core.engine()?.opt_abort()?))
    }

    /// Asks for TLS; returns whether the server agreed.
    fn opt_starttls(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask_whether(py, "opt_starttls", TalkOption::StartTls)
    }

    /// Asks for extended headers; returns whether the server agreed.
    fn opt_extended_headers(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask_whether(py, "opt_extended_headers", TalkOption::ExtendedHeaders)
    }

    /// Asks for structured replies; returns whether the server agreed.
    fn opt_structured_reply(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask_whether(py, "opt_structured_reply", TalkOption::StructuredReply)
    }

    /// Calls `list(name, description)` for each export; returns how many there are.
    fn opt_list(&self, py: Python<'_>, list: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.demand(py, "opt_list", TalkOption::List, Some(list), "list")
    }

    /// Asks about the export without opening it.
    fn opt_info(&self, py: Python<'_>) -> PyResult<()> {
        self.demand(py, "opt_info", TalkOption::Info, None, "opt_info").map(|_| ())
    }

    /// Calls `context(name)` for each context of the server that `add_meta_context` names, or for
    /// all.
    fn opt_list_meta_context(&self, py: Python<'_>, context: &Bound<'_, PyAny>) -> PyResult<usize> {
        let option = TalkOption::ListContexts(None);
        self.demand(py, "opt_list_meta_context", option, Some(context), "list meta context")
    }

    /// The same, for the given queries.
    fn opt_list_meta_context_queries(
        &self,
        py: Python<'_>,
        queries: Vec<String>,
        context: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (call, option) =
            ("opt_list_meta_context_queries", TalkOption::ListContexts(Some(queries)));
        self.demand(py, call, option, Some(context), "list meta context")
    }

    /// Selects the contexts of `add_meta_context`, and calls `context(name)` for each that the
    /// server accepts.
    fn opt_set_meta_context(&self, py: Python<'_>, context: &Bound<'_, PyAny>) -> PyResult<usize> {
        let option = TalkOption::SetContexts(None);
        self.demand(py, "opt_set_meta_context", option, Some(context), "meta context")
    }

    /// The same, for the given queries.
    fn opt_set_meta_context_queries(
        &self,
        py: Python<'_>,
        queries: Vec<String>,
        context: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (call, option) =
            ("opt_set_meta_context_queries", TalkOption::SetContexts(Some(queries)));
        self.demand(py, call, option, Some(context), "meta context")
    }

    /// As `opt_go`; calls `completion(error)` at its end.
    #[pyo3(signature = (completion=None))]
    fn aio_opt_go(&self, py: Python<'_>, completion: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.ask(py, "aio_opt_go", TalkOption::Go, None, completion)
    }

    /// As `opt_abort`.
    fn aio_opt_abort(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, "aio_opt_abort", |core| Ok(core.engine()?.opt_abort()?))
    }

    /// As `opt_starttls`; calls `completion(error)` at its end.
    #[pyo3(signature = (completion=None))]
    fn aio_opt_starttls(
        &self,
        py: Python<'_>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.ask(py, "aio_opt_starttls", TalkOption::StartTls, None, completion)
    }

    /// As `opt_extended_headers`; calls `completion(error)` at its end.
    #[pyo3(signature = (completion=None))]
    fn aio_opt_extended_headers(
        &self,
        py: Python<'_>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::ExtendedHeaders;
        self.ask(py, "aio_opt_extended_headers", option, None, completion)
    }

    /// As `opt_structured_reply`; calls `completion(error)` at its end.
    #[pyo3(signature = (completion=None))]
    fn aio_opt_structured_reply(
        &self,
        py: Python<'_>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::StructuredReply;
        self.ask(py, "aio_opt_structured_reply", option, None, completion)
    }

    /// As `opt_list`; calls `completion(error)` at its end.
    #[pyo3(signature = (list, completion=None))]
    fn aio_opt_list(
        &self,
        py: Python<'_>,
        list: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.ask(py, "aio_opt_list", TalkOption::List, Some(list), completion)
    }

    /// As `opt_info`; calls `completion(error)` at its end.
    #[pyo3(signature = (completion=None))]
    fn aio_opt_info(&self, py: Python<'_>, completion: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.ask(py, "aio_opt_info", TalkOption::Info, None, completion)
    }

    /// As `opt_list_meta_context`; calls `completion(error)` at its end.
    #[pyo3(signature = (context, completion=None))]
    fn aio_opt_list_meta_context(
        &self,
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::ListContexts(None);
        self.ask(py, "aio_opt_list_meta_context", option, Some(context), completion)
    }

    /// As `opt_list_meta_context_queries`; calls `completion(error)` at its end.
    #[pyo3(signature = (queries, context, completion=None))]
    fn aio_opt_list_meta_context_queries(
        &self,
        py: Python<'_>,
        queries: Vec<String>,
        context: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::ListContexts(Some(queries));
        self.ask(py, "aio_opt_list_meta_context_queries", option, Some(context), completion)
    }

    /// As `opt_set_meta_context`; calls `completion(error)` at its end.
    #[pyo3(signature = (context, completion=None))]
    fn aio_opt_set_meta_context(
        &self,
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::SetContexts(None);
        self.ask(py, "aio_opt_set_meta_context", option, Some(context), completion)
    }

    /// As `opt_set_meta_context_queries`; calls `completion(error)` at its end.
    #[pyo3(signature = (queries, context, completion=None))]
    fn aio_opt_set_meta_context_queries(
        &self,
        py: Python<'_>,
        queries: Vec<String>,
        context: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let option = TalkOption::SetContexts(Some(queries));
        self.ask(py, "aio_opt_set_meta_context_queries", option, Some(context), completion)
    }
}
