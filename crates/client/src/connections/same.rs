//! Whether a further connection leads to the export that the first one led to.

use device::{Error, ErrorKind, Fault, Result};
use wire::{Negotiated, TransmissionFlags as Flags};

/// All connections must lead to one export, or a disk would be mixed from two; and what was
/// advertised of it to others must stay true. Abilities with a fallback (zeroes, trim, the map) may
/// come and go.
pub(super) fn check_same(first: &Negotiated, further: &Negotiated) -> Result<()> {
    let promises = [
        (Flags::SEND_FLUSH, "flush"),
        (Flags::SEND_FUA, "FUA"),
        (Flags::CAN_MULTI_CONN, "several connections"),
    ];
    let lost = promises
        .into_iter()
        .find(|(flag, _)| first.flags.contains(*flag) && !further.flags.contains(*flag));
    let read_only = |session: &Negotiated| session.flags.contains(Flags::READ_ONLY);
    // A server sends both or neither, and the same to each connection.
    let told = |text: &Option<String>| text.clone().unwrap_or_default();
    let said_otherwise = [
        ("name", told(&first.canonical_name), told(&further.canonical_name)),
        ("description", told(&first.description), told(&further.description)),
    ]
    .into_iter()
    .find(|(_, was, is)| was != is);
    let said = if first.size != further.size {
        format!("its size was {} and is {} bytes", first.size, further.size)
    } else if read_only(first) != read_only(further) {
        let now = if read_only(further) { "can no longer" } else { "can now" };
        format!("it {now} be written")
    } else if first.blocks.minimum != further.blocks.minimum {
        let (was, is) = (first.blocks.minimum, further.blocks.minimum);
        format!("its smallest block was {was} and is {is} bytes")
    } else if further.max_payload() < first.max_payload() {
        let (was, is) = (first.max_payload(), further.max_payload());
        format!("its longest request was {was} and is {is} bytes")
    } else if let Some((what, was, is)) = said_otherwise {
        format!("its {what} was {was:?} and is {is:?}")
    } else if let Some((_, what)) = lost {
        format!("it no longer has {what}")
    } else {
        return Ok(());
    };
    let action = format!("connect again: the export has changed: {said}");
    Err(Error::new(ErrorKind::Protocol, Fault::Peer, action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_connection_must_see_the_same_export() {
        let first = Negotiated {
            size: 1 << 20,
            canonical_name: Some("disk".into()),
            description: Some("a disk".into()),
            ..Negotiated::default()
        };
        assert!(check_same(&first, &first).is_ok());
        for (other, said) in [
            (Negotiated { size: 1 << 21, ..first.clone() }, "its size was"),
            (Negotiated { canonical_name: Some("disc".into()), ..first.clone() }, "its name was"),
            (Negotiated { canonical_name: None, ..first.clone() }, "its name was"),
            (
                Negotiated { description: Some("another".into()), ..first.clone() },
                "its description",
            ),
        ] {
            let error = check_same(&first, &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
