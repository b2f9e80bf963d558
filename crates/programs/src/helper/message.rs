//! The messages between the process and its helper. An attacker may control the asking side, so the
//! helper checks everything in a message, including every length.

use std::io;

use crate::names::{Act, Numbers};

/// Bytes of a question, at most.
pub(super) const LONGEST: usize = 128 << 10;
/// Instead of the length of a value: there is none.
const NONE: u32 = u32::MAX;

/// What is asked for.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Question<'a> {
    /// Start a program, by its index among those that were named, with the values of its variables
    /// in order.
    Start { index: usize, values: Vec<Option<&'a str>> },
    /// Send a signal to a started program.
    Signal { pid: i32, signal: i32 },
    /// Kill a started program that is in a group of its own, with all that is in the group.
    KillGroup { pid: i32 },
    /// Do that at a name, by its index among those that were granted.
    Name { index: u32, act: Act },
}

/// The result: an error number or 0, and the number of the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Answer {
    pub(super) errno: i32,
    pub(super) pid: i32,
}

impl<'a> Question<'a> {
    /// # Errors
    /// It is too long.
    pub(super) fn bytes(&self) -> io::Result<Vec<u8>> {
        let long =
            || io::Error::new(io::ErrorKind::InvalidInput, "the values of variables are too long");
        let mut bytes = Vec::new();
        match self {
            Self::Start { index, values } => {
                bytes.push(0);
                bytes.extend(u32::try_from(*index).map_err(|_| long())?.to_le_bytes());
                for value in values {
                    let Some(value) = value else {
                        bytes.extend(NONE.to_le_bytes());
                        continue;
                    };
                    if value.len() > LONGEST - bytes.len().min(LONGEST) {
                        return Err(long());
                    }
                    bytes.extend(u32::try_from(value.len()).map_err(|_| long())?.to_le_bytes());
                    bytes.extend(value.as_bytes());
                }
            }
            Self::Signal { pid, signal } => {
                bytes.push(1);
                bytes.extend(pid.to_le_bytes());
                bytes.extend(signal.to_le_bytes());
            }
            Self::KillGroup { pid } => {
                bytes.push(2);
                bytes.extend(pid.to_le_bytes());
            }
            Self::Name { index, act } => {
                bytes.push(3);
                bytes.extend(index.to_le_bytes());
                bytes.extend(words(*act).into_iter().flat_map(u64::to_le_bytes));
            }
        }
        if bytes.len() > LONGEST { Err(long()) } else { Ok(bytes) }
    }

    /// `None`: it is none.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let number = |rest: &mut &[u8]| -> Option<u32> {
            let (number, after) = rest.split_first_chunk()?;
            *rest = after;
            Some(u32::from_le_bytes(*number))
        };
        match kind {
            0 => {
                let index = usize::try_from(number(&mut rest)?).ok()?;
                let mut values = Vec::new();
                while !rest.is_empty() {
                    let len = number(&mut rest)?;
                    if len == NONE {
                        values.push(None);
                        continue;
                    }
                    let (value, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                    // A variable ends with a zero.
                    let value = std::str::from_utf8(value).ok().filter(|v| !v.contains('\0'))?;
                    values.push(Some(value));
                    rest = after;
                }
                Some(Self::Start { index, values })
            }
            1 => {
                let pid = i32::try_from(number(&mut rest)?).ok()?;
                let signal = i32::try_from(number(&mut rest)?).ok()?;
                rest.is_empty().then_some(Self::Signal { pid, signal })
            }
            2 => {
                let pid = i32::try_from(number(&mut rest)?).ok()?;
                rest.is_empty().then_some(Self::KillGroup { pid })
            }
            3 => {
                let index = number(&mut rest)?;
                let (words, after) = rest.as_chunks();
                let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
                let act = act(words.try_into().ok()?)?;
                after.is_empty().then_some(Self::Name { index, act })
            }
            _ => None,
        }
    }
}

/// An act as numbers: which one it is, and two more.
fn words(act: Act) -> [u64; 3] {
    match act {
        Act::Make { mode } => [0, mode.into(), 0],
        Act::Append => [1, 0, 0],
        Act::Read => [12, 0, 0],
        Act::Nameless { mode } => [2, mode.into(), 0],
        Act::Link => [3, 0, 0],
        Act::Reopen { flags } => [4, flags.into(), 0],
        Act::Replace { by } => [5, by.into(), 0],
        Act::Remove { numbers: Numbers((device, inode)) } => [6, device, inode],
        Act::Sync => [7, 0, 0],
        Act::TakeTurn => [8, 0, 0],
        Act::EndTurn => [9, 0, 0],
        Act::MakePrivate { number } => [10, number.into(), 0],
        Act::RemovePrivate { number } => [11, number.into(), 0],
    }
}

fn act([which, first, second]: [u64; 3]) -> Option<Act> {
    let number = u32::try_from(first);
    Some(match which {
        0 => Act::Make { mode: number.ok()? },
        1 => Act::Append,
        12 => Act::Read,
        2 => Act::Nameless { mode: number.ok()? },
        3 => Act::Link,
        4 => Act::Reopen { flags: number.ok()? },
        5 => Act::Replace { by: number.ok()? },
        6 => Act::Remove { numbers: Numbers((first, second)) },
        7 => Act::Sync,
        8 => Act::TakeTurn,
        9 => Act::EndTurn,
        10 => Act::MakePrivate { number: number.ok()? },
        11 => Act::RemovePrivate { number: number.ok()? },
        _ => return None,
    })
}

impl Answer {
    pub(super) const LEN: usize = 8;

    pub(super) fn bytes(self) -> [u8; Self::LEN] {
        let all = u64::from(self.errno.cast_unsigned()) << 32 | u64::from(self.pid.cast_unsigned());
        all.to_le_bytes()
    }

    pub(super) fn parse(bytes: [u8; Self::LEN]) -> Self {
        let all = u64::from_le_bytes(bytes);
        let half =
            |shift: u32| u32::try_from(all >> shift & u64::from(u32::MAX)).unwrap_or_default();
        Self { errno: half(32).cast_signed(), pid: half(0).cast_signed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_the_helper_arrives_unchanged() {
        for question in [
            Question::Start { index: 3, values: vec![Some("a"), None, Some(""), Some("ü")] },
            Question::Start { index: 0, values: Vec::new() },
            Question::Signal { pid: 77, signal: 15 },
            Question::KillGroup { pid: 77 },
        ] {
            assert_eq!(Question::parse(&question.bytes().unwrap()), Some(question));
        }
        let answer = Answer { errno: 2, pid: 4_000_000 };
        assert_eq!(Answer::parse(answer.bytes()), answer);
    }

    #[test]
    fn what_is_asked_at_a_name_arrives_unchanged() {
        let numbers = Numbers((u64::MAX, 7));
        let acts = [
            Act::Make { mode: 0o600 },
            Act::Append,
            Act::Read,
            Act::Nameless { mode: 0o666 },
            Act::Link,
            Act::Reopen { flags: 1 },
            Act::Replace { by: 3 },
            Act::Remove { numbers },
            Act::Sync,
            Act::TakeTurn,
            Act::EndTurn,
            Act::MakePrivate { number: 9 },
            Act::RemovePrivate { number: 9 },
        ];
        for act in acts {
            let question = Question::Name { index: 5, act };
            let bytes = question.bytes().unwrap();
            assert_eq!(Question::parse(&bytes), Some(question));
            assert_eq!(Question::parse(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Question::parse(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn an_invalid_request_to_the_helper_is_refused_and_allocates_nothing() {
        let whole = Question::Start { index: 1, values: vec![Some("abc"), Some("d")] };
        let whole = whole.bytes().unwrap();
        for len in [0, 1, 4, 6, 9, 11, 15, 16] {
            assert_eq!(Question::parse(&whole[..len]), None, "{len}");
        }
        let mut wrong = whole.clone();
        wrong[0] = 7;
        assert_eq!(Question::parse(&wrong), None);
        // A length beyond the end; a zero within a value.
        let mut wrong = whole.clone();
        wrong[8] = 0x7f;
        assert_eq!(Question::parse(&wrong), None);
        let mut wrong = whole.clone();
        wrong[10] = 0;
        assert_eq!(Question::parse(&wrong), None);
        let long = "x".repeat(LONGEST);
        assert!(Question::Start { index: 0, values: vec![Some(&long)] }.bytes().is_err());
    }
}
