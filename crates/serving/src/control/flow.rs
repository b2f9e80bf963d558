//! Exports that are paused, go on, or get a rate, as the control socket says.

use device::{Error, Result};
use serde_json::{Value, json};

use super::{State, text, unknown};
use crate::Severity;

/// Holds up the requests of an export, or lets them begin again.
pub(super) fn pause(request: &Value, is_paused: bool, state: &State) -> Result<Value> {
    let name = text(request, "name")?.ok_or_else(|| Error::invalid("`name` is missing"))?;
    let export = state.live.export(name).ok_or_else(|| unknown(name))?;
    export.flow().pause(is_paused);
    let what = if is_paused { "paused" } else { "resumed" };
    log(state, name, format_args!("{what}"));
    let in_flight = state.live.in_flight(name);
    Ok(json!({ "export": name, "paused": is_paused, "in-flight": in_flight }))
}

/// Limits the bytes that are read and written in a second, or does so no longer.
pub(super) fn limit(request: &Value, state: &State) -> Result<Value> {
    let name = text(request, "name")?.ok_or_else(|| Error::invalid("`name` is missing"))?;
    let bytes = match request.get("bytes") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let bytes = value.as_u64().filter(|bytes| *bytes > 0);
            let wrong = || Error::invalid("`bytes` is a number of bytes a second, from 1 on");
            Some(bytes.ok_or_else(wrong)?)
        }
    };
    let export = state.live.export(name).ok_or_else(|| unknown(name))?;
    export.flow().limit(bytes);
    match bytes {
        Some(bytes) => log(state, name, format_args!("{bytes} bytes a second")),
        None => log(state, name, format_args!("no rate limit")),
    }
    Ok(json!({ "export": name, "rate": bytes }))
}

fn log(state: &State, name: &str, what: std::fmt::Arguments<'_>) {
    state.log.event(Severity::Info, None, None, format_args!("export `{name}`: {what}"));
}
