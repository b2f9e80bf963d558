//! What a handshake advertises of an export.

use device::{Edge, Info};
use serving::Export;
use wire::constants::BASE_ALLOCATION;
use wire::{BlockConstraints, ExportOffer, TransmissionFlags};

/// What is advertised of it when `edge` serves it: the device, or what it gave for one client.
pub(crate) fn offer(export: &Export, name: &str, edge: &Edge) -> ExportOffer {
    let info = edge.info();
    let chosen = export.edge.device().is_chosen_by_name();
    let own = info.export.as_deref().filter(|_| chosen);
    let asked = Some(name).filter(|name| chosen && !name.is_empty());
    let told = info.advertised.map(|b| BlockConstraints {
        minimum: b.minimum,
        preferred: b.preferred,
        maximum: b.maximum,
    });
    ExportOffer {
        name: own.or(asked).unwrap_or(&export.name).to_owned(),
        description: export.described(info),
        size: info.size,
        flags: flags(export, info),
        blocks: Some(told.unwrap_or_else(|| enforced(info))),
        contexts: contexts(info),
    }
}

/// What it can do.
fn flags(export: &Export, info: &Info) -> TransmissionFlags {
    use TransmissionFlags as F;
    let a = info.abilities;
    let write = !export.read_only && a.write;
    let mut flags = F::HAS_FLAGS.with(F::SEND_DF);
    let mut say = |yes: bool, flag| {
        if yes {
            flags = flags.with(flag);
        }
    };
    say(!write, F::READ_ONLY);
    say(a.flush, F::SEND_FLUSH);
    // With flush the edge can make any command durable, so FUA can be advertised.
    say(write && !a.hides_fua && (a.fua || a.flush), F::SEND_FUA);
    say(a.rotational, F::ROTATIONAL);
    say(write && a.trim, F::SEND_TRIM);
    // Zeroes are always worth a short request: where the device cannot, the edge writes them.
    say(write && !a.hides_zero, F::SEND_WRITE_ZEROES);
    say(write && !a.hides_zero && a.fast_zero, F::SEND_FAST_ZERO);
    say(a.prefetch, F::SEND_CACHE);
    say(a.multi_conn, F::CAN_MULTI_CONN);
    say(true, F::BLOCK_STATUS_PAYLOAD);
    flags
}

/// The status contexts of a device.
pub(crate) fn contexts(info: &Info) -> Vec<String> {
    let others = info.contexts.iter().map(|name| (**name).to_owned());
    std::iter::once(BASE_ALLOCATION.to_owned()).chain(others).collect()
}

/// The sizes that are enforced: the edge takes any byte and splits what is too long.
pub(crate) fn enforced(info: &Info) -> BlockConstraints {
    BlockConstraints {
        minimum: 1,
        preferred: info.blocks.preferred.max(info.blocks.minimum),
        maximum: 32 << 20,
    }
}
