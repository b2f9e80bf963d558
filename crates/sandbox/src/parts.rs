//! A filter's program in parts, so that a call is compared with few numbers.
//!
//! The kernel goes through a filter once for every number of a call when it is installed (Linux
//! 5.11, `seccomp_cache_prepare`), and older kernels do so at each call. Compared one after the
//! other, some hundred refused calls were most of what a quick verb cost. The parts are those of
//! `seccompiler`, whole; before them stand the first numbers of each.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

/// Numbers of calls in a part: about as many as there are parts.
const NUMBERS: usize = 16;

/// Load the number of the call, which stands first in what a filter sees (linux/seccomp.h).
const LOAD_NUMBER: sock_filter = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };

/// Of calls, those that `rules` describe and those with numbers from `end` on are refused with
/// `refuse`, and all others allowed.
///
/// # Errors
/// The rules are none that a filter can have, or too many.
pub(crate) fn program(
    mut rules: BTreeMap<i64, Vec<SeccompRule>>,
    end: i64,
    refuse: &SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, BackendError> {
    let mut parts = Vec::new();
    while let Some(first) = rules.keys().nth(NUMBERS).copied() {
        let later = rules.split_off(&first);
        parts.push((first, part(rules, refuse, arch)?));
        rules = later;
    }
    parts.push((end, part(rules, refuse, arch)?));
    // Whatever is not in a later part goes through the first one.
    let (firsts, mut bodies): (Vec<i64>, Vec<BpfProgram>) = parts.into_iter().unzip();
    bodies.push(vec![answer(refuse)]);
    // No rules: whether the call is one of this machine, and then the verdict, which follows here.
    let mut table = whole(BTreeMap::new(), refuse, arch)?;
    table.pop();
    table.push(LOAD_NUMBER);
    for (part, first) in firsts.iter().enumerate().rev() {
        let between: usize = bodies.iter().take(part + 1).map(Vec::len).sum();
        table.push(unless_at_least(number(*first)?));
        // What is left of the table, two steps a part, and the parts before this one.
        table.push(jump(number(2 * part + between)?));
    }
    table.extend(bodies.into_iter().flatten());
    match table.len() {
        0..4096 => Ok(table),
        length => Err(BackendError::FilterTooLarge(length)),
    }
}

/// What is done with the numbers of one part.
fn part(
    mut rules: BTreeMap<i64, Vec<SeccompRule>>,
    refuse: &SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, BackendError> {
    let always: Vec<i64> =
        rules.extract_if(.., |_, rules| rules.is_empty()).map(|(number, _)| number).collect();
    let mut steps = Vec::new();
    for (before, call) in always.iter().enumerate() {
        // To the refusal: beyond those that are left, and the jump over it.
        let left = u8::try_from(always.len() - before)
            .map_err(|_| BackendError::FilterTooLarge(usize::MAX))?;
        steps.push(if_equal(number(*call)?, left));
    }
    steps.extend([jump(1), answer(refuse)]);
    match rules.len() {
        0 => steps.push(answer(&SeccompAction::Allow)),
        _ => steps.extend(whole(rules, refuse, arch)?),
    }
    Ok(steps)
}

fn whole(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    refuse: &SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, SeccompAction::Allow, refuse.clone(), arch)?.try_into()
}

fn number<N: TryInto<u32>>(value: N) -> Result<u32, BackendError> {
    value.try_into().map_err(|_| BackendError::FilterTooLarge(usize::MAX))
}

fn answer(action: &SeccompAction) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: action.clone().into() }
}

/// Leaves the next step out unless the number is at least `first`.
const fn unless_at_least(first: u32) -> sock_filter {
    sock_filter { code: 0x35, jt: 0, jf: 1, k: first }
}

/// Leaves `steps` out if the number is `call`.
const fn if_equal(call: u32, steps: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: steps, jf: 0, k: call }
}

const fn jump(steps: u32) -> sock_filter {
    sock_filter { code: 0x05, jt: 0, jf: 0, k: steps }
}
