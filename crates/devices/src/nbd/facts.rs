//! The facts of a server's exports, by nbdinfo's keys in nbdinfo's order.

use ::device::{Params, Result};
use runtime::Context;
use wire::{Framing, ListedExport, Negotiated, TransmissionFlags as Flags};

use crate::OpenOptions;
use crate::inspection::{Fact, Facts, Inspection, Scope};
use crate::nbd::params::NbdParams;

/// Asks the server that `params` name about its export, without using it, or about all.
pub(crate) fn inspect(params: &Params, scope: Scope, context: &Context) -> Result<Inspection> {
    let options = OpenOptions::default();
    let NbdParams { target, .. } = NbdParams::parse(params, &options, context.patience)?;
    if scope == Scope::Disk {
        let session = client::inspect(&target)?;
        let export = of_export(&session, target.name_of(&target.export));
        return Ok(Inspection { place: of_server(Some(&session)), disks: vec![export] });
    }
    let listed = client::list(&target)?;
    let session = listed.iter().find_map(|export| export.details.as_ref()?.as_ref().ok());
    let place = of_server(session);
    let disks = listed.iter().map(|export| of_listed(export, target.name_of(&export.name)));
    Ok(Inspection { place, disks: disks.collect() })
}

/// How the server speaks.
fn of_server(session: Option<&Negotiated>) -> Facts {
    let mode = session.map_or(Framing::Extended, |s| s.mode);
    let protocol = session.map_or("newstyle-fixed", |s| s.protocol.name());
    vec![
        ("protocol", Fact::Text(protocol.to_owned())),
        ("TLS", Fact::Flag(session.is_some_and(|s| s.tls))),
        ("structured", Fact::Flag(mode != Framing::Simple)),
        ("extended", Fact::Flag(mode == Framing::Extended)),
    ]
}

fn of_listed(export: &ListedExport, uri: String) -> Facts {
    if let Some(Ok(session)) = &export.details {
        let description = session.description.clone();
        let description = description.or_else(|| Some(export.description.clone()));
        return of_export(&Negotiated { description, ..session.clone() }, uri);
    }
    let mut facts = vec![("export-name", Fact::Text(export.name.clone()))];
    if !export.description.is_empty() {
        facts.push(("description", Fact::Text(export.description.clone())));
    }
    facts.push(("uri", Fact::Text(uri)));
    if let Some(Err(e)) = &export.details {
        facts.push(("error", Fact::Text(e.to_string())));
    }
    facts
}

/// The facts of an export by its session; `uri` is its URI.
///
/// As in nbdinfo, an export has the server's canonical name, if there is one.
fn of_export(session: &Negotiated, uri: String) -> Facts {
    let name = session.canonical_name.as_ref().unwrap_or(&session.export);
    let mut facts = vec![("export-name", Fact::Text(name.clone()))];
    if let Some(text) = session.description.as_ref().filter(|d| !d.is_empty()) {
        facts.push(("description", Fact::Text(text.clone())));
    }
    facts.push(("uri", Fact::Text(uri)));
    // Without structured replies they cannot be asked about.
    let contexts = session.available_contexts.as_ref().filter(|_| session.mode != Framing::Simple);
    if let Some(contexts) = contexts.filter(|c| !c.is_empty()) {
        facts.push(("contexts", Fact::Texts(contexts.clone())));
    }
    let offers = |key, flag| (key, Fact::Flag(session.flags.contains(flag)));
    facts.push(offers("is_rotational", Flags::ROTATIONAL));
    facts.push(offers("is_read_only", Flags::READ_ONLY));
    if session.mode == Framing::Extended {
        facts.push(offers("can_block_status_payload", Flags::BLOCK_STATUS_PAYLOAD));
    }
    facts.extend([
        offers("can_cache", Flags::SEND_CACHE),
        offers("can_df", Flags::SEND_DF),
        offers("can_fast_zero", Flags::SEND_FAST_ZERO),
        offers("can_flush", Flags::SEND_FLUSH),
        offers("can_fua", Flags::SEND_FUA),
        offers("can_multi_conn", Flags::CAN_MULTI_CONN),
        offers("can_trim", Flags::SEND_TRIM),
        offers("can_zero", Flags::SEND_WRITE_ZEROES),
    ]);
    if session.blocks_advertised {
        let blocks = session.blocks;
        facts.extend([
            ("block_size_minimum", Fact::Number(blocks.minimum.into())),
            ("block_size_preferred", Fact::Number(blocks.preferred.into())),
            ("block_size_maximum", Fact::Number(blocks.maximum.into())),
        ]);
    }
    facts.push(("export-size", Fact::Size(session.size)));
    facts
}
