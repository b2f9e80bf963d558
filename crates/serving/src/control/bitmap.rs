//! Bitmaps of exports, as the control socket changes them.

use device::{Error, Result};
use serde_json::{Value, json};

use super::ControlledExport;
use crate::bitmaps::{BitmapAction, USUAL_GRANULARITY};
use crate::{ServerLog, Severity};

/// Does what a request says to a bitmap.
pub(super) fn run(request: &Value, exports: &[ControlledExport], log: &ServerLog) -> Result<Value> {
    let text = |key| super::text(request, key);
    let flag = |key| super::flag(request, key);
    let granularity = match request.get("granularity") {
        None | Some(Value::Null) => USUAL_GRANULARITY,
        Some(value) => {
            value.as_u64().ok_or_else(|| Error::invalid("`granularity` is a number of bytes"))?
        }
    };
    let action = match text("action")? {
        Some("add") => BitmapAction::Add { granularity, records: !flag("disabled")? },
        Some("clear") => BitmapAction::Clear,
        Some("disable") => BitmapAction::Disable,
        Some("enable") => BitmapAction::Enable,
        Some("remove") => BitmapAction::Remove,
        _ => {
            let action = "`action` is add, remove, enable, disable or clear";
            return Err(Error::invalid(action));
        }
    };
    if flag("persistent")? {
        let action = "a bitmap of a running server is in memory and ends with it; add a \
                      persistent one to the image before serving it (`diskferry bitmap --add`)";
        return Err(Error::unsupported(action));
    }
    let name = text("name")?.ok_or_else(|| Error::invalid("`name` is missing"))?;
    let wanted = text("export")?.unwrap_or_default();
    let by_name = exports.iter().find(|export| export.name == wanted);
    let default = || exports.iter().find(|export| wanted.is_empty() && export.is_default);
    let unknown = || Error::invalid(format!("no export is named `{wanted}`; `list` shows them"));
    let export = by_name.or_else(default).ok_or_else(unknown)?;
    if export.is_read_only && matches!(action, BitmapAction::Add { .. }) {
        let name = match &*export.name {
            "" => "the default export".to_owned(),
            name => format!("the export `{name}`"),
        };
        return Err(Error::invalid(format!("{name} is read-only: nothing is written")));
    }
    let bitmaps = export.bitmaps.as_ref().ok_or_else(unknown)?;
    bitmaps.act(name, action)?;
    let what = format_args!("export `{}`: bitmap `{name}`: {action:?}", export.name);
    log.event(Severity::Info, None, None, what);
    Ok(json!({ "export": export.name, "name": name }))
}
